// The page: keeps what the reader has selected, and draws what has changed.
import { Actions } from "./actions.js";
import { Curves, PALETTE } from "./curves.js";
import { $, attribute, element, say } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { Stream } from "./stream.js";
import { ClientTable, EventList, grouped, RunTable, stateOf, timeLeft } from "./tables.js";
import { clock, digits, duration, fixed, metricName, NONE } from "./words.js";

const MOST_CURVES = PALETTE.length, FIRST = ["auroc", "c_index", "accuracy", "loss"];
const chosen = new URLSearchParams(location.hash.slice(1));
let selected = chosen.get("run"), compared = new Set((chosen.get("with") ?? "").split(",").filter(Boolean)), untouched = !chosen.get("with");
let metric = null, measure = "", dirty = true, tableOpen = false;

const stream = new Stream(note, (state) => {
  attribute($("connection"), "data-state", state);
  say("connection", state === "on" ? "live" : "connection lost, trying again …");
});
const curves = new Curves($("curves")), heat = new HeatMap(), events = new EventList(), actions = new Actions();
const runTable = new RunTable(choose, compare), clientTable = new ClientTable((action, client) => actions.ask(selected, action, client));
clientTable.redraw = heat.redraw = runTable.redraw = () => { dirty = true; };

function note(kind) {
  dirty = true;
  if (kind === "runs") selectRuns();
}

// Select a run where none is selected (the one that was written last), and the curves beside it.
function selectRuns() {
  const runs = [...stream.runs.values()];
  if (!stream.runs.has(selected)) selected = runs.filter((run) => run.status === "running").concat(runs).sort((a, b) => (b.status === "running") - (a.status === "running") || (b.written ?? 0) - (a.written ?? 0))[0]?.id ?? null;
  if (untouched) compared = alike();
  show();
}

// Without a choice of the reader: every experiment once, with the seed of the selected run; else its other seeds.
function alike() {
  const own = stream.runs.get(selected);
  if (!own) return new Set();
  const groups = grouped(stream.runs.values());
  const same = [...groups.values()].map((members) => members.find((run) => run.seed === own.seed)).filter(Boolean);
  const shown = same.length > 1 ? same : groups.get(own.group);
  return new Set(shown.slice(0, MOST_CURVES).map((run) => run.id));
}

function show() {
  const beside = [...compared].filter((id) => id !== selected && stream.runs.has(id)).slice(0, MOST_CURVES - 1);
  stream.show(selected, beside);
  const state = new URLSearchParams();
  if (selected) state.set("run", selected);
  if (!untouched) state.set("with", [...compared].join(","));
  history.replaceState(null, "", `#${state}`);
  dirty = true;
}

function choose(id) { selected = id; measure = ""; if (untouched) compared = alike(); show(); }
function compare(id, wanted) {
  untouched = false;
  if (wanted) compared.add(id); else compared.delete(id);
  show();
}

function draw() {
  const runs = [...stream.runs.values()], info = stream.runs.get(selected), now = stream.now();
  $("nothing").hidden = runs.length > 0 || stream.waiting === undefined;
  $("overview").hidden = runs.length < 2;
  $("run").hidden = !info;
  if (stream.waiting) $("waiting").replaceChildren(...stream.waiting.map((path) => element("li", {}, path)));
  if (!info) { document.title = "wardround watch"; return; }
  const data = stream.data.get(selected);
  chooseMetric(info, data);
  drawClock();
  if (!data) return;
  drawCurves(info);
  events.draw(data, selected);
  if (!measure) measure = data.cells.scored || !data.cells.weighted ? "scores" : "weights";
  if (!data.cells.scored && data.cells.weighted && measure === "scores") measure = "weights";
  $("measure").value = measure;
  say("heat-title", `${measure === "scores" ? "Anomaly" : "Weight"}, client by round`);
  heat.draw(data, info, measure, $("row-order").value);
  if (tableOpen) heat.table(data);
  clientTable.draw(data, info, now, stream.actions, $("only-flagged").checked);
}

// Everything that changes with the clock alone.
function drawClock() {
  const info = stream.runs.get(selected), now = stream.now();
  if (!info) return;
  runTable.draw([...stream.runs.values()], selected, compared, metric ?? "auroc", now);
  tiles(info, stream.data.get(selected), now);
}

function chooseMetric(info, data) {
  const known = [...new Set([...Object.keys(info.metrics), ...(data?.metrics ?? [])])];
  if (metric === null || (known.length && !known.includes(metric))) metric = FIRST.find((name) => known.includes(name)) ?? known[0] ?? null;
  metric ??= "auroc";
  const choice = $("metric"), options = known.length ? known : [metric];
  if ([...choice.options].map((o) => o.value).join() !== options.join()) choice.replaceChildren(...options.map((name) => element("option", { value: name }, metricName(name))));
  choice.value = metric;
  if (known.length === 0) metric = null;
}

function tiles(info, data, now) {
  const state = stateOf(info, now), seconds = timeLeft(info, now);
  document.title = `${info.round}/${info.rounds ?? "?"} ${info.label} – wardround watch`;
  say("run-title", info.label);
  say("run-path", info.name === info.label ? "" : info.name);
  say("rounds-done", String(info.round));
  say("rounds-all", info.rounds ? ` of ${info.rounds}` : "");
  $("progress").value = info.rounds ? info.round / info.rounds : 0;
  attribute($("state"), "data-state", state);
  say("state", state);
  say("state-note", info.reason ?? (state === "silent" ? `nothing new for ${duration(now - info.written)}: the run may have been stopped` : state === "waiting" ? "no round is finished yet" : info.unreadable ? `${info.unreadable} lines could not be read` : ""));
  say("eta", seconds === null ? NONE : duration(seconds));
  say("pace", (seconds === null ? "" : `at ${clock(now + seconds - stream.skew)}, `) + (info.seconds_per_round ? `${digits(info.seconds_per_round)} s per round` : ""));
  const name = metric ?? "auroc", values = (data?.rounds ?? []).map((r) => r.metrics[name]).filter((v) => v !== undefined);
  const best = values.length ? (name === "loss" ? Math.min : Math.max)(...values) : null;
  say("quality-name", metricName(name));
  say("quality", fixed(info.metrics[name] ?? null, 3));
  say("quality-note", best === null ? "no evaluation yet" : `best so far ${fixed(best, 3)}`);
  const rows = (data?.rows ?? []).filter(Boolean), flagging = rows.filter((row) => row.mark !== "-");
  const flagged = rows.filter((row) => row.mark === "1" || row.mark === "2"), set = Object.keys(info.quarantined).length;
  say("flagged", flagging.length ? String(flagged.length) : NONE);
  say("flagged-of", info.clients ? ` of ${info.clients}` : "");
  say("flagged-note", [flagging.length || !rows.length ? "" : "the rule raises no flags", set ? `${set} quarantined` : ""].filter(Boolean).join(", "));
  say("epsilon", info.epsilon === null ? NONE : digits(info.epsilon));
  say("epsilon-note", info.epsilon === null ? "no differential privacy" : info.budget ? `of ${digits(info.budget)}` : "no budget set");
  $("warnings").hidden = !info.warnings.length;
  if ($("warnings").dataset.shown !== info.warnings.join("\n")) {
    $("warnings").replaceChildren(...info.warnings.map((text) => element("li", {}, text)));
    $("warnings").dataset.shown = info.warnings.join("\n");
  }
  $("operator-note").hidden = !info.federation || ["finished", "diverged"].includes(info.status) || stream.actions;
  say("operator-note", "Quarantining and releasing clients is switched off. To switch it on, start wardround watch with --token and a secret.");
}

function drawCurves(info) {
  const ids = [selected, ...[...compared].filter((id) => id !== selected)].filter((id) => stream.data.has(id) && stream.runs.has(id)).slice(0, MOST_CURVES);
  const order = [...stream.runs.keys()];
  const used = ids.map((id) => ({ id, slot: order.indexOf(id) % MOST_CURVES })), taken = new Set();
  for (const one of used) { while (taken.has(one.slot)) one.slot = (one.slot + 1) % MOST_CURVES; taken.add(one.slot); }
  // What all curves have in common stands in the title, not in every name.
  const infos = ids.map((id) => stream.runs.get(id)), several = infos.length > 1;
  const oneSeed = several && infos.every((run) => run.seed === info.seed), oneGroup = several && infos.every((run) => run.group === info.group);
  const nameOf = (run) => (oneGroup && oneSeed ? run.name : oneSeed ? run.group : oneGroup ? `seed ${run.seed}` : run.label);
  say("curves-title", oneGroup ? `Curves of ${info.group}` : oneSeed ? `Curves, seed ${info.seed}` : "Curves");
  const drawn = used.map(({ id, slot }) => ({
    id, name: nameOf(stream.runs.get(id)), colour: PALETTE[slot], chosen: id === selected,
    points: stream.data.get(id).rounds.filter((r) => metric !== null && r.metrics[metric] !== undefined).map((r) => [r.round, r.metrics[metric]]),
  }));
  curves.draw(drawn, metric ?? "auroc", info.rounds, info.onset ?? 0);
}

// Draw at most once per frame, and leave three quarters of the time to the reader's clicks.
let rest = 0;
function frame(now) {
  if (dirty && !document.hidden && now >= rest) {
    dirty = false;
    const begin = performance.now();
    draw();
    rest = now + 4 * (performance.now() - begin);
  }
  requestAnimationFrame(frame);
}

for (const id of ["row-order", "only-flagged", "event-type"]) $(id).addEventListener("change", () => { dirty = true; });
$("metric").addEventListener("change", (event) => { metric = event.target.value; dirty = true; });
$("measure").addEventListener("change", (event) => { measure = event.target.value; dirty = true; });
$("heat-table").addEventListener("toggle", (event) => { tableOpen = event.target.open; dirty = true; });
$("theme").value = localStorage.getItem("wardround-theme") ?? "auto";
function theme() {
  const wanted = $("theme").value;
  localStorage.setItem("wardround-theme", wanted);
  attribute(document.documentElement, "data-theme", wanted === "auto" ? null : wanted);
  dirty = true;
}
$("theme").addEventListener("change", theme);
theme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { dirty = true; });
new ResizeObserver(() => { dirty = true; }).observe($("content"));
setInterval(() => { if (!document.hidden) drawClock(); }, 1000);
requestAnimationFrame(frame);
stream.open();
