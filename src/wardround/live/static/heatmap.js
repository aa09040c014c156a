// Client × round on a canvas: the shade is the score or weight; flagged and dropped updates have their own colours.
import { $, attribute, colour, css, element, say } from "./dom.js";
import { ABSENT, DROPPED, FLAGGED, QUARANTINED } from "./model.js";
import { digits, ranges, share } from "./words.js";

const FOOT = 22, MOST_LABEL = 22;

export class HeatMap {
  constructor() {
    this.canvas = $("heat");
    this.tip = $("heat-tip");
    this.cursor = null;
    this.canvas.addEventListener("pointermove", (event) => this.show(this.cellAt(event), false));
    this.canvas.addEventListener("pointerleave", () => this.show(null, false));
    this.canvas.addEventListener("blur", () => this.show(null, false));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  draw(data, info, measure, order) {
    const { cells } = data;
    this.data = data;
    this.info = info;
    this.measure = measure;
    const values = cells[measure], known = measure === "scores" ? cells.scored : cells.weighted;
    const rounds = Math.max(cells.rounds, Math.min(info.rounds || 0, 4 * cells.rounds), 10);
    this.rows = [...Array(cells.clients).keys()];
    if (order === "flagged") this.rows.sort((a, b) => (data.rows[b]?.flagged ?? 0) - (data.rows[a]?.flagged ?? 0) || a - b);
    const empty = cells.rounds === 0;
    $("heat-frame").hidden = $("heat-help").hidden = $("heat-legend").hidden = empty;
    $("heat-none").hidden = !empty && known;
    say("heat-none", empty ? "No round is finished yet." : "This rule has no such number; the cells show who took part.");
    if (empty) return;

    const ratio = window.devicePixelRatio || 1, width = Math.max(240, $("heat-frame").clientWidth);
    const height = Math.max(Math.min(5, 2000 / cells.clients), Math.min(18, Math.floor(520 / cells.clients)));
    const context = this.canvas.getContext("2d");
    context.font = "12px system-ui, sans-serif";
    const labels = data.names.map((name) => (name.length > MOST_LABEL ? `${name.slice(0, MOST_LABEL - 1)}…` : name));
    const left = Math.ceil(Math.min(0.3 * width, Math.max(...labels.map((label) => context.measureText(label).width), 20))) + 10;
    const bins = Math.min(rounds, Math.floor(width - left)), step = rounds / bins;
    Object.assign(this, { left, bins, step, height, width, rounds, cellWidth: (width - left) / bins });
    const whole = cells.clients * height + FOOT;
    const pixels = [Math.round(width * ratio), Math.round(whole * ratio)];
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) {
      [this.canvas.width, this.canvas.height] = pixels;
      this.canvas.style.height = `${whole}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, whole);
    context.imageSmoothingEnabled = false;
    this.scale(cells, values, known);
    context.drawImage(this.paint(cells, values), left, 0, width - left, cells.clients * height);
    this.lattice(context, cells.clients);
    this.words(context, labels, info);
    this.legend(known);
    attribute(this.canvas, "aria-label", this.summary());
    if (this.cursor) this.outline();
    this.drawn = (this.drawn || 0) + 1;
  }

  // Shades span the 2nd to the 98th percentile of the cells without a colour of their own, on a logarithmic scale
  // where these differ by powers of ten.
  scale({ marks }, values, known) {
    const sample = [], jump = Math.max(1, Math.floor(values.length / 2000));
    for (let i = 0; i < values.length; i += jump) if (Number.isFinite(values[i]) && marks[i] !== FLAGGED && marks[i] !== DROPPED && marks[i] !== QUARANTINED) sample.push(values[i]);
    sample.sort((a, b) => a - b);
    let low = sample[Math.floor(0.02 * (sample.length - 1))] ?? 0, high = sample[Math.ceil(0.98 * (sample.length - 1))] ?? 1;
    if (this.measure === "weights") [low, high] = [0, Math.max(high, 2 / this.rows.length)];  // an equal share is in the middle
    this.log = known && this.measure === "scores" && sample[0] >= 0 && high > 20 * Math.max(low, 1e-12);
    if (this.log) low = Math.max(low, high / 1000);
    if (high <= low) high = low + 1;
    Object.assign(this, { low, high });
    // The scale changes only when it must: every cell is then painted again.
    const near = (a, b) => Math.abs(a - b) <= 0.1 * (high - low), before = this.shades ?? {};
    if (before.log !== this.log || !near(before.low, low) || !near(before.high, high)) this.shades = { low, high, log: this.log, toString: () => `${low} ${high}` };
    Object.assign(this, { low: this.shades.low, high: this.shades.high });
  }

  shade(value) {
    const along = this.log
      ? Math.log(Math.max(value, this.low) / this.low) / Math.log(this.high / this.low)
      : (value - this.low) / (this.high - this.low);
    return Math.round(255 * Math.max(0, Math.min(1, along)));
  }

  // One pixel per cell, on a canvas that is kept: a new round costs one column, unless the scale has changed.
  paint(cells, values) {
    const [low, middle, high, flag, drop, quarantined, absent] = ["--low", "--middle", "--high", "--flag", "--drop", "--quarantine", "--absent"].map(colour);
    const looks = [this.measure, this.rows, this.bins, this.rounds, low, high, this.shades].join("|");
    const kept = this.cells === cells && this.looks === looks;
    if (!kept) {
      this.sheet = element("canvas");
      this.sheet.width = this.bins;
      this.sheet.height = cells.clients;
      this.painted = 0;
      this.ramp = Array.from({ length: 256 }, (_, i) => {
        const [from, to, t] = i < 128 ? [low, middle, i / 127] : [middle, high, (i - 128) / 127];
        return from.map((part, c) => part + t * (to[c] - part));
      });
    }
    Object.assign(this, { cells, looks });
    // The last column may have been incomplete when it was painted.
    const first = Math.max(0, this.painted - 2), last = Math.min(this.bins, Math.ceil(cells.rounds / this.step));
    const width = (kept ? last : this.bins) - first, picture = new ImageData(width, cells.clients), pixels = picture.data;
    this.rows.forEach((client, line) => {
      for (let bin = first; bin < first + width; bin++) {
        const [mark, value] = this.binned(cells, values, client, bin);
        const rgb = mark === ABSENT ? absent : mark === DROPPED ? drop : mark === FLAGGED ? flag : mark === QUARANTINED ? quarantined : Number.isNaN(value) ? low : this.ramp[this.shade(value)];
        const place = 4 * (line * width + bin - first);
        pixels[place] = rgb[0]; pixels[place + 1] = rgb[1]; pixels[place + 2] = rgb[2]; pixels[place + 3] = 255;
      }
    });
    this.sheet.getContext("2d").putImageData(picture, first, 0);
    this.painted = last;
    return this.sheet;
  }

  span(bin) { return [Math.floor(bin * this.step) + 1, Math.min(this.rounds, Math.floor((bin + 1) * this.step))]; }

  // A column of several rounds shows the worst of them: no flag may be hidden.
  binned(cells, values, client, bin) {
    const [first, last] = this.span(bin);
    let mark = ABSENT, value = NaN;
    for (let r = first; r <= last && r <= cells.rounds; r++) {
      const place = cells.at(client, r), own = cells.marks[place];
      if (own === ABSENT) continue;
      if (mark === ABSENT || own === FLAGGED || (own === DROPPED && mark !== FLAGGED)) mark = own;
      if (!(values[place] <= value)) value = Number.isNaN(values[place]) ? value : values[place];
    }
    return [mark, value];
  }

  lattice(context, clients) {
    context.strokeStyle = css(colour("--ground"));
    context.lineWidth = 1;
    context.beginPath();
    if (this.height >= 9) for (let line = 0; line <= clients; line++) { context.moveTo(this.left, line * this.height); context.lineTo(this.width, line * this.height); }
    if (this.cellWidth >= 7) for (let bin = 0; bin <= this.bins; bin++) { const x = this.left + bin * this.cellWidth; context.moveTo(x, 0); context.lineTo(x, clients * this.height); }
    context.stroke();
  }

  words(context, labels, info) {
    const foot = this.rows.length * this.height, attackers = new Set(info.attackers), every = Math.ceil(12 / this.height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    this.rows.forEach((client, line) => {
      if (line % every) return;
      context.fillStyle = css(colour(attackers.has(this.data.names[client]) ? "--flag-ink" : "--faint"));
      context.fillText(labels[client] ?? "", this.left - 8, Math.max(6, (line + 0.5) * this.height), this.left - 10);
    });
    context.fillStyle = css(colour("--faint"));
    context.textAlign = "center";
    const rough = this.rounds / Math.max(2, (this.width - this.left) / 90), power = 10 ** Math.floor(Math.log10(rough));
    const gap = Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough));
    for (let round = gap; round <= this.rounds; round += gap) {
      const half = context.measureText(String(round)).width / 2;
      context.fillText(String(round), Math.min(this.width - half, this.xOf(round)), foot + 12);
    }
    if (info.onset > 1) {
      const x = this.left + ((info.onset - 1) / this.step) * this.cellWidth;
      context.strokeStyle = css(colour("--flag"));
      context.setLineDash([2, 3]);
      context.beginPath(); context.moveTo(x, 0); context.lineTo(x, foot + 6); context.stroke();
      context.setLineDash([]);
    }
  }

  xOf(round) { return this.left + (Math.floor((round - 1) / this.step) + 0.5) * this.cellWidth; }

  legend(known) {
    const part = (name, words) => {
      const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = `var(${name})`;
      return element("span", {}, swatch, words);
    };
    const shown = this.measure === "scores" ? digits : share;
    const parts = known ? [element("span", {}, shown(this.low), element("span", { class: "ramp", "aria-hidden": "true" }), shown(this.high))] : [];
    parts.push(part("--flag", "flagged"), part("--drop", "dropped"), part("--absent", "absent"));
    if (this.info.federation || Object.keys(this.info.quarantined).length) parts.push(part("--quarantine", "quarantined"));
    if (this.info.attackers.length) parts.push(element("span", {}, "names of attackers are orange"));
    if (this.step > 1) parts.push(element("span", {}, `each column shows the worst of ${Math.ceil(this.step)} rounds`));
    $("heat-legend").replaceChildren(...parts);
  }

  summary() {
    const now = this.data.rows.filter((row) => row && (row.mark === "1" || row.mark === "2")).map((row) => this.data.names[row.place]);
    return `Heat map of ${this.rows.length} clients over ${this.data.cells.rounds} rounds. ` +
      (now.length ? `Flagged or dropped in their last round: ${now.slice(0, 10).join(", ")}.` : "No client is flagged now.");
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const bin = Math.floor((event.clientX - box.left - this.left) / this.cellWidth), line = Math.floor((event.clientY - box.top) / this.height);
    return bin >= 0 && bin < this.bins && line >= 0 && line < this.rows.length ? { bin, line } : null;
  }

  key(event) {
    if (!this.rows?.length) return;
    const last = Math.min(this.bins - 1, Math.floor((this.data.cells.rounds - 1) / this.step));
    const at = this.cursor ?? { bin: last, line: 0 };
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Escape") { this.show(null, false); return; }
    let { bin, line } = at;
    if (moves[event.key]) { if (this.cursor) { bin += moves[event.key][0]; line += moves[event.key][1]; } }
    else if (event.key === "Home") bin = 0;
    else if (event.key === "End") bin = last;
    else return;
    event.preventDefault();
    this.show({ bin: Math.max(0, Math.min(last, bin)), line: Math.max(0, Math.min(this.rows.length - 1, line)) }, true);
  }

  show(cell, aloud) {
    this.tip.hidden = cell === null;
    if (!aloud && this.cursor) { this.cursor = null; this.redraw?.(); }
    if (cell === null) return;
    const client = this.rows[cell.line], { cells } = this.data, [first, last] = this.span(cell.bin);
    const flagged = cells.flaggedIn(client).filter((r) => r >= first && r <= last);
    const [mark] = this.binned(cells, cells.scores, client, cell.bin);
    const lines = [this.data.names[client], first === last ? `round ${first}` : `rounds ${first}–${last}`];
    if (mark === ABSENT) lines.push(first > cells.rounds ? "still to come" : "absent");
    else {
      if (cells.scored) lines.push(`score ${digits(this.binned(cells, cells.scores, client, cell.bin)[1])}`);
      if (cells.weighted) lines.push(`weight ${share(this.binned(cells, cells.weights, client, cell.bin)[1])}`);
      if (mark === QUARANTINED) lines.push("quarantined");
      if (flagged.length) lines.push((mark === DROPPED ? "dropped" : "flagged") + (first === last ? "" : ` in ${ranges(flagged)}`));
    }
    this.tip.textContent = lines.join("\n");
    const x = this.left + (cell.bin + 1) * this.cellWidth + 8, y = cell.line * this.height + this.height;
    this.tip.style.left = `${x + this.tip.offsetWidth > this.width ? x - this.tip.offsetWidth - this.cellWidth - 16 : x}px`;
    this.tip.style.top = `${y}px`;
    if (aloud) {
      this.cursor = cell;
      say("heat-live", lines.join(", "));
      this.redraw?.();
    }
  }

  outline() {
    const context = this.canvas.getContext("2d");
    context.strokeStyle = css(colour("--ink"));
    context.lineWidth = 2;
    context.strokeRect(this.left + this.cursor.bin * this.cellWidth, this.cursor.line * this.height, Math.max(3, this.cellWidth), this.height);
  }

  table(data) {
    const body = document.querySelector("#heat-table tbody");
    body.replaceChildren(...data.names.map((name, client) => {
      const flagged = data.cells.flaggedIn(client), row = data.rows[client];
      let highest = NaN;
      for (let r = 1; r <= data.cells.rounds; r++) { const s = data.cells.scores[data.cells.at(client, r)]; if (!(s <= highest) && !Number.isNaN(s)) highest = s; }
      return element("tr", {}, element("th", { scope: "row", class: "word" }, name), element("td", {}, String(row?.taken_part ?? 0)),
        element("td", {}, String(flagged.length)), element("td", {}, digits(highest)), element("td", { class: "word" }, ranges(flagged) || "never"));
    }));
  }
}
