// The list of runs, the table of clients and the list of events.
import { $, attribute, element, say } from "./dom.js";
import { clock, column as inColumn, digits, duration, fixed, metricName, NONE, share } from "./words.js";

const CLIENTS_SHOWN = 500;  // a browser takes seconds for thousands of lines
const SHOWN_EVENTS = 300, ENDS = new Set(["finished", "diverged", "failed", "stopped", "budget"]);

export function stateOf(info, now) {
  if (info.status !== "running") return info.status;
  const patience = Math.max(60, 10 * (info.seconds_per_round ?? 0));
  return info.written && now - info.written > patience ? "silent" : "running";
}

export function timeLeft(info, now) {
  if (stateOf(info, now) !== "running" || !info.rounds || !info.seconds_per_round) return null;
  return Math.max(0, (info.rounds - info.round) * info.seconds_per_round - Math.max(0, now - info.written));
}

// Experiments by name, each with its runs by seed.
export function grouped(runs) {
  const order = (a, b) => String(a).localeCompare(String(b), "en", { numeric: true });
  const groups = new Map();
  for (const run of [...runs].sort((a, b) => order(a.group, b.group) || order(a.seed, b.seed) || order(a.name, b.name))) {
    if (!groups.has(run.group)) groups.set(run.group, []);
    groups.get(run.group).push(run);
  }
  return groups;
}

export class RunTable {
  constructor(choose, compare) {
    this.body = document.querySelector("#runs tbody");
    this.choose = choose;
    this.compare = compare;
    this.rows = new Map();
    this.open = new Map();     // experiment → unfolded, where the reader has decided
  }

  // Seeds of one experiment stand below its name, which is a row of its own and folds them away.
  draw(runs, selected, compared, metric, now) {
    say("runs-metric", metricName(metric));
    const groups = grouped(runs), present = new Set();
    say("overview-count", groups.size < runs.length ? `${runs.length}, ${groups.size} experiments` : `${runs.length}`);
    attribute(this.body.closest("table"), "data-epsilon", runs.some((run) => run.epsilon !== null) ? "yes" : null);
    const lines = [];
    for (const [name, members] of groups) {
      const open = members.length === 1 || (this.open.get(name) ?? members.some((run) => run.id === selected));
      if (members.length > 1) {
        present.add(`group ${name}`);
        lines.push(this.heading(name, members, open, metric, now));
      }
      for (const run of members) {
        present.add(run.id);
        const row = this.fill(run, members.length > 1, selected, compared, metric, now);
        row.hidden = !open;
        lines.push(row);
      }
    }
    for (const [key, row] of this.rows) if (!present.has(key)) { row.remove(); this.rows.delete(key); }
    lines.forEach((line, i) => { if (this.body.rows[i] !== line) this.body.insertBefore(line, this.body.rows[i] ?? null); });
  }

  heading(name, members, open, metric, now) {
    const key = `group ${name}`;
    let row = this.rows.get(key);
    if (!row) {
      const cell = () => element("td", {});
      row = element("tr", { class: "group" }, element("td", { class: "narrow" }),
        element("td", { class: "word" }, element("button", { type: "button", class: "link", onclick: () => { this.open.set(name, row.dataset.open !== "yes"); this.redraw?.(); } })),
        element("td", { class: "word" }, element("span", { class: "state" })), cell(), cell(), cell(), cell());
      this.rows.set(key, row);
    }
    const [, title, state, round, left, quality, epsilon] = row.cells, button = title.firstChild;
    row.dataset.open = open ? "yes" : "no";
    attribute(button, "aria-expanded", open ? "true" : "false");
    say(button, `${name} · ${members.length} seeds`);
    const counts = new Map();
    for (const run of members) counts.set(stateOf(run, now), (counts.get(stateOf(run, now)) ?? 0) + 1);
    const states = [...counts.keys()];
    attribute(state.firstChild, "data-state", states.length === 1 ? states[0] : states.find((one) => one !== "finished"));
    say(state.firstChild, states.length === 1 ? states[0] : states.map((one) => `${counts.get(one)} ${one}`).join(", "));
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    const all = members.every((run) => run.rounds) ? sum(members.map((run) => run.rounds)) : "?";
    say(round, `${sum(members.map((run) => run.round))} / ${all}`);
    const waits = members.map((run) => timeLeft(run, now)).filter((seconds) => seconds !== null);
    say(left, waits.length ? duration(Math.max(...waits)) : NONE);
    const values = members.map((run) => run.metrics[metric]).filter((value) => value !== undefined && value !== null);
    say(quality, values.length ? `⌀ ${fixed(sum(values) / values.length, 3)}` : NONE);
    const spent = members.map((run) => run.epsilon).filter((value) => value !== null);
    say(epsilon, spent.length ? digits(Math.max(...spent)) : NONE);
    return row;
  }

  fill(run, below, selected, compared, metric, now) {
    let row = this.rows.get(run.id);
    if (!row) {
      row = this.line(run);
      this.rows.set(run.id, row);
    }
    const [curve, name, state, round, left, quality, epsilon] = row.cells, box = curve.firstChild;
    row.className = [run.id === selected ? "chosen" : "", below ? "below" : ""].filter(Boolean).join(" ");
    box.checked = run.id === selected || compared.has(run.id);
    box.disabled = run.id === selected;
    attribute(box, "aria-label", `show the curve of ${run.label}`);
    say(name.firstChild, below ? `seed ${run.seed}` : run.label);
    attribute(name.firstChild, "aria-label", below ? run.label : null);
    attribute(name.firstChild, "aria-current", run.id === selected ? "true" : null);
    attribute(name.firstChild, "title", run.name);
    attribute(state.firstChild, "data-state", stateOf(run, now));
    say(state.firstChild, stateOf(run, now));
    say(round, `${run.round} / ${run.rounds ?? "?"}`);
    const seconds = timeLeft(run, now);
    say(left, seconds === null ? NONE : duration(seconds));
    say(quality, fixed(run.metrics[metric], 3));
    say(epsilon, run.epsilon === null ? NONE : digits(run.epsilon));
    return row;
  }

  line(run) {
    const cell = (...inner) => element("td", {}, ...inner);
    return element("tr", {},
      element("td", { class: "narrow" }, element("input", { type: "checkbox", onchange: (event) => this.compare(run.id, event.target.checked) })),
      element("td", { class: "word" }, element("button", { type: "button", class: "link", onclick: () => this.choose(run.id) })),
      element("td", { class: "word" }, element("span", { class: "state" })), cell(), cell(), cell(), cell());
  }
}

// By mark: the word in the table, and its class.
const FLAGS = { 0: ["no", ""], 1: ["flagged", "on"], 2: ["dropped", "drop"], 3: ["left out", ""], "-": ["no flags", ""] };

export class ClientTable {
  constructor(act) {
    this.act = act;
    this.head = document.querySelector("#clients thead tr");
    this.body = document.querySelector("#clients tbody");
    this.rows = new Map();
    this.sort = { key: "name", ascending: true };
  }

  columns(info, data, now, actions) {
    const truth = info.attackers.length + (info.broken ?? []).length > 0;
    const seen = (row) => (info.seen[row.name] ? `, ${duration(now - info.seen[row.name])} ago` : "");
    return [
      { key: "name", title: "client", word: true, value: (row) => row.name },
      ...(truth ? [{ key: "truth", title: "truth", word: true, hint: "known in simulations only", value: (row) => (row.attacking ? "attacks" : row.attacker ? "attacker" : row.broken ? "broken" : "honest") }] : []),
      { key: "samples", title: "samples", value: (row) => row.samples, text: (value) => (value === null ? NONE : value.toLocaleString("en")) },
      { key: "norm", title: "norm", hint: "norm of the update", value: (row) => row.norm, text: inColumn(data.rows.map((row) => row?.norm ?? null)) },
      { key: "score", title: "score", hint: "the rule's own; higher is more suspicious", value: (row) => row.score, text: inColumn(data.rows.map((row) => row?.score ?? null)) },
      { key: "weight", title: "weight", hint: "share in the new model", value: (row) => row.weight, text: share },
      { key: "mark", title: "flag", word: true, value: (row) => (row.quarantine === null ? FLAGS[row.mark][0] : `quarantined, ${FLAGS[row.mark][0]}`), class: (row) => `word flag ${FLAGS[row.mark][1]}` },
      { key: "why", title: "why", word: true, class: () => "word why", value: (row) => (row.quarantine === null ? row.why : [`quarantined: ${row.quarantine}`, row.mark === "3" ? "" : row.why].filter(Boolean).join("; ")) },
      { key: "flagged", title: "flagged", hint: "rounds in which it was flagged or dropped", value: (row) => row.flagged, text: (value, row) => `${value} of ${row.taken_part}` },
      { key: "round", title: "last seen", value: (row) => row.round, text: (value, row) => (value === 0 ? "not yet" : `round ${value}${info.round - value > 0 ? `, ${info.round - value} ago` : ""}${seen(row)}`) },
      ...(!["finished", "diverged"].includes(info.status) && actions ? [{ key: "action", title: "operator", word: true }] : []),
    ];
  }

  draw(data, info, now, actions, only) {
    const columns = this.columns(info, data, now, actions), shape = columns.map((c) => c.key).join();
    if (shape !== this.shape) this.headings(columns, shape);
    const attackers = new Set(info.attackers), broken = new Set(info.broken ?? []), empty = { round: 0, samples: null, norm: null, score: null, weight: null, mark: "-", why: "", flagged: 0, taken_part: 0, attacking: false, columns: {} };
    const known = data.names.map((name, place) => ({ ...empty, ...data.rows[place], name, attacker: attackers.has(name), broken: broken.has(name), quarantine: info.quarantined[name] ?? null }));
    for (const name of Object.keys(info.quarantined)) if (!data.names.includes(name)) known.push({ ...empty, name, attacker: false, broken: false, quarantine: info.quarantined[name] });
    const shown = known.filter((row) => !only || row.mark === "1" || row.mark === "2" || row.quarantine !== null);
    const column = columns.find((c) => c.key === this.sort.key) ?? columns[0];
    const first = this.sorted(shown, column).slice(0, CLIENTS_SHOWN), names = new Set(first.map((row) => row.name));
    for (const [name, line] of this.rows) if (!names.has(name)) { line.remove(); this.rows.delete(name); }
    const more = document.querySelector("#clients-more");
    more.hidden = first.length === shown.length;
    say(more, `The first ${first.length} of ${shown.length.toLocaleString("en")} clients: sort by a column to see others.`);
    const lines = first.map((row) => this.fill(row, columns));
    lines.forEach((line, i) => { if (this.body.rows[i] !== line) this.body.insertBefore(line, this.body.rows[i] ?? null); });
  }

  sorted(rows, column) {
    const sign = this.sort.ascending ? 1 : -1, value = column.value ?? ((row) => row.name);
    return rows.sort((a, b) => {
      const x = value(a), y = value(b);
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
    });
  }

  headings(columns, shape) {
    this.shape = shape;
    this.rows.clear();
    this.body.replaceChildren();
    this.head.replaceChildren(...columns.map((column) => {
      const th = element("th", { scope: "col", class: column.word ? "word" : null, title: column.hint });
      if (!column.value) { th.append(column.title); return th; }
      th.append(element("button", { type: "button", onclick: () => {
        this.sort = { key: column.key, ascending: this.sort.key === column.key ? !this.sort.ascending : column.word === true };
        this.mark(columns);
        this.redraw?.();
      } }, column.title));
      return th;
    }));
    this.mark(columns);
  }

  mark(columns) {
    columns.forEach((column, i) => attribute(this.head.cells[i], "aria-sort", column.key === this.sort.key ? (this.sort.ascending ? "ascending" : "descending") : null));
  }

  fill(row, columns) {
    let line = this.rows.get(row.name);
    if (!line) {
      line = element("tr", {}, ...columns.map((column) => element("td", { class: column.word ? "word" : null })));
      this.rows.set(row.name, line);
    }
    line.className = row.mark === "1" ? "flagged" : row.mark === "2" ? "dropped" : row.quarantine !== null ? "quarantined" : "";
    columns.forEach((column, i) => {
      const cell = line.cells[i];
      if (column.key === "action") { this.button(cell, row); return; }
      const value = column.value(row);
      say(cell, column.text ? column.text(value, row) : value);
      if (column.class) attribute(cell, "class", column.class(row));
    });
    attribute(line.cells[0], "title", Object.entries(row.columns).map(([name, value]) => `${name} ${digits(value)}`).join("\n") || null);
    return line;
  }

  button(cell, row) {
    const action = row.quarantine === null ? "quarantine" : "release", words = row.quarantine === null ? "Quarantine…" : "Release…";
    let button = cell.firstChild;
    if (!button) { button = element("button", { type: "button" }); cell.append(button); }
    say(button, words);
    attribute(button, "aria-label", `${words} ${row.name}`);
    button.onclick = () => this.act(action, row.name);
  }
}

export class EventList {
  constructor() {
    this.list = $("events");
    this.types = new Set();
    this.shown = "";
  }

  draw(data, run) {
    const choice = $("event-type"), wanted = choice.value;
    for (const { type } of data.events) if (!this.types.has(type)) { this.types.add(type); choice.append(element("option", { value: type }, type)); }
    const state = `${run}|${data.events.length}|${wanted}|${data.events[0]?.order}`;
    if (state === this.shown && data === this.data) return;
    this.shown = state;
    this.data = data;
    const events = data.events.filter((event) => !wanted || event.type === wanted);
    events.sort((a, b) => (b.round ?? -1) - (a.round ?? -1) || ENDS.has(b.type) - ENDS.has(a.type) || (b.time ?? 0) - (a.time ?? 0) || b.order - a.order);
    const lines = events.slice(0, SHOWN_EVENTS).map((event) => element("li", { "data-type": event.type },
      element("time", { title: event.time ? new Date(1000 * event.time).toLocaleString() : null }, event.round !== undefined ? `round ${event.round}` : event.time ? clock(event.time) : "just now"),
      element("span", {}, event.text)));
    if (events.length > SHOWN_EVENTS) lines.push(element("li", {}, element("time", {}, ""), element("span", {}, `and ${events.length - SHOWN_EVENTS} earlier events`)));
    if (!lines.length) lines.push(element("li", {}, element("time", {}, ""), element("span", {}, "No events yet.")));
    this.list.replaceChildren(...lines);
  }
}
