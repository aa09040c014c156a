// The connection to the server: one stream for the list of runs, the selected run, and the curves beside it.
import { RunData } from "./model.js";

export class Stream {
  constructor(changed, state) {
    this.changed = changed;            // called after every message
    this.state = state;                // called with on, lost or off
    this.runs = new Map();
    this.data = new Map();
    this.cursor = "";
    this.selected = null;
    this.beside = [];
    this.skew = 0;                     // the server's clock minus ours, in seconds
    this.source = null;
    // A browser opens few connections to one server: a hidden page closes its own.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
  }

  show(selected, beside) {
    const before = `${this.selected}|${this.beside}`;
    this.selected = selected;
    this.beside = beside.filter((id) => id !== selected);
    if (before === `${this.selected}|${this.beside}` && this.source) return;
    for (const [id, data] of this.data) {
      if ((id === selected) !== data.whole || (id !== selected && !this.beside.includes(id))) this.data.delete(id);
    }
    this.open();
  }

  open() {
    this.close();
    const query = new URLSearchParams();
    if (this.selected) query.set("run", this.selected);
    if (this.beside.length) query.set("with", this.beside.join(","));
    // Places of runs whose data we no longer have are left out: these are sent from the beginning.
    const [head, ...places] = this.cursor.split(";");
    if (head) query.set("after", [head, ...places.filter((place) => this.data.has(place.split(":")[0]))].join(";"));
    const source = new EventSource(`/events?${query}`);
    this.source = source;
    source.onopen = () => this.state("on");
    source.onerror = () => {
      this.state("lost");
      if (source.readyState === EventSource.CLOSED) setTimeout(() => this.source === source && this.reconnect(), 3000);
    };
    const listen = (name, read) => source.addEventListener(name, (event) => {
      if (this.source !== source) return;
      read(JSON.parse(event.data));
      this.cursor = event.lastEventId;
      this.changed(name);
    });
    listen("runs", (message) => this.readRuns(message));
    listen("log", (message) => this.readLog(message));
    listen("clients", (message) => {
      const data = this.data.get(message.run);
      if (data) for (const row of message.rows) data.rows[row.place] = row;
    });
  }

  // A restarted server does not know our cookie: its login page asks for the token.
  async reconnect() {
    const answer = await fetch("/api/runs", { credentials: "same-origin" }).catch(() => null);
    if (answer?.status === 401) location.reload();
    else this.open();
  }

  close() {
    if (this.source) this.source.close();
    this.source = null;
  }

  readRuns(message) {
    if (message.first) this.runs.clear();
    for (const run of message.gone) this.runs.delete(run);
    for (const run of message.runs) this.runs.set(run.id, run);
    this.skew = message.now - Date.now() / 1000;
    this.waiting = message.waiting;
    this.actions = message.actions;
  }

  readLog({ run, reset, whole, entries }) {
    if (reset || !this.data.has(run)) this.data.set(run, new RunData(whole));
    const data = this.data.get(run);
    for (const entry of entries) data.add(entry);
  }

  now() { return Date.now() / 1000 + this.skew; }
}
