// Curves over rounds as SVG: one per run, the selected run's on top and thicker.
import { $, attribute, element, svg } from "./dom.js";
import { digits, fixed, metricName } from "./words.js";

export const PALETTE = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#BBA800"];
const HEIGHT = 320, LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 34;

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const values = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9 * step; value += step) values.push(value);
  return { values, step };
}

export class Curves {
  constructor(host) {
    this.host = host;
    this.curves = [];
    this.picture = svg("svg", { role: "img" });
    host.append(this.picture);
    this.tip = element("div", { class: "tip", hidden: true });
    host.append(this.tip);
    host.addEventListener("pointermove", (event) => this.point(event));
    host.addEventListener("pointerleave", () => { this.tip.hidden = true; this.cross?.setAttribute("visibility", "hidden"); });
  }

  // curves: [{id, name, colour, chosen, points: [[round, value], …]}]
  draw(curves, metric, rounds, onset) {
    this.curves = curves;
    this.metric = metric;
    const width = Math.max(280, this.host.clientWidth), all = curves.flatMap((c) => c.points.map((p) => p[1]));
    this.picture.replaceChildren();
    attribute(this.picture, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const last = Math.max(rounds || 1, ...curves.map((c) => c.points.at(-1)?.[0] ?? 1), 2);
    let low = Math.min(...all), high = Math.max(...all);
    if (!all.length) { low = 0; high = 1; }
    if (high - low < 1e-3) { low -= 0.01; high += 0.01; }
    const margin = 0.06 * (high - low);
    low -= margin; high += margin;
    this.x = (round) => LEFT + ((round - 1) / (last - 1)) * (width - LEFT - RIGHT);
    this.y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    this.last = last;
    const grid = ticks(low, high, 6);
    for (const value of grid.values) {
      this.picture.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: this.y(value), y2: this.y(value), stroke: "var(--line)" }));
      const places = Math.max(0, Math.min(4, -Math.floor(Math.log10(grid.step) + 1e-9)));
      this.picture.append(svg("text", { x: LEFT - 7, y: this.y(value) + 4, "text-anchor": "end" }, value.toFixed(places)));
    }
    for (const round of [1, ...ticks(1, last, Math.max(3, width / 130)).values.filter((r) => r > 1 && Number.isInteger(r))]) {
      this.picture.append(svg("text", { x: this.x(round), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, String(round)));
    }
    this.picture.append(svg("text", { x: width - RIGHT, y: HEIGHT - 2, "text-anchor": "end" }, "round"));
    if (onset > 1 && onset <= last) {
      this.picture.append(svg("line", { x1: this.x(onset), x2: this.x(onset), y1: TOP, y2: HEIGHT - BOTTOM, stroke: "var(--flag)", "stroke-dasharray": "2 4" }));
      const left = this.x(onset) > width - 110;
      this.picture.append(svg("text", { x: this.x(onset) + (left ? -5 : 5), y: TOP + 11, "text-anchor": left ? "end" : "start" }, "attack begins"));
    }
    for (const curve of [...curves].sort((a, b) => a.chosen - b.chosen)) {
      if (!curve.points.length) continue;
      const path = curve.points.map(([r, v], i) => `${i ? "L" : "M"}${this.x(r).toFixed(1)} ${this.y(v).toFixed(1)}`).join("");
      this.picture.append(svg("path", { d: path, fill: "none", stroke: curve.colour, "stroke-width": (curve.chosen ? 2.6 : 1.5) * (curve.points.length > 300 ? 0.6 : 1), "stroke-linejoin": "round", opacity: curve.chosen || curves.length < 3 ? 1 : 0.8 }));
      const [r, v] = curve.points.at(-1);
      this.picture.append(svg("circle", { cx: this.x(r), cy: this.y(v), r: curve.chosen ? 3.5 : 2.5, fill: curve.colour }));
    }
    this.cross = svg("line", { y1: TOP, y2: HEIGHT - BOTTOM, stroke: "var(--faint)", visibility: "hidden" });
    this.picture.append(this.cross);
    const ends = curves.filter((c) => c.points.length).map((c) => `${c.name}: ${digits(c.points.at(-1)[1])} in round ${c.points.at(-1)[0]}`);
    attribute(this.picture, "aria-label", `${metricName(metric)} over rounds. ${ends.join("; ") || "No value yet"}.`);
    this.legend(curves);
  }

  legend(curves) {
    $("legend").replaceChildren(...curves.map((curve) => {
      const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = curve.colour;
      const name = element(curve.chosen ? "b" : "span", {}, curve.name);
      return element("li", {}, swatch, name, ": ", element("b", {}, fixed(curve.points.at(-1)?.[1], 3)));
    }));
  }

  point(event) {
    if (!this.x || !this.curves.some((c) => c.points.length)) return;
    const box = this.host.getBoundingClientRect();
    const span = this.x(this.last) - this.x(1);
    const round = Math.min(this.last, Math.max(1, Math.round(1 + ((event.clientX - box.left - this.x(1)) / span) * (this.last - 1))));
    const lines = this.curves.filter((c) => c.points.length).map((curve) => {
      const known = curve.points.filter(([r]) => r <= round).at(-1);
      return known ? `${digits(known[1])}  ${curve.name}` : null;
    }).filter(Boolean);
    this.cross.setAttribute("visibility", "visible");
    for (const name of ["x1", "x2"]) this.cross.setAttribute(name, this.x(round));
    this.tip.textContent = [`round ${round}`, ...lines].join("\n");
    this.tip.hidden = false;
    const left = this.x(round) + 12;
    this.tip.style.left = `${left + this.tip.offsetWidth > box.width ? Math.max(0, left - this.tip.offsetWidth - 24) : left}px`;
    this.tip.style.top = "12px";
  }
}
