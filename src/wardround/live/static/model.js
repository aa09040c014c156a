// The data of one run, built from the entries of the stream.
export const FINE = 0, FLAGGED = 1, DROPPED = 2, QUARANTINED = 3, NO_FLAGS = 4, ABSENT = 255;
const MARKS = { 0: FINE, 1: FLAGGED, 2: DROPPED, 3: QUARANTINED, "-": NO_FLAGS };

export class RunData {
  constructor(whole) {
    this.whole = whole;
    this.rounds = [];          // {round, metrics, seconds, epsilon}, oldest first
    this.metrics = new Set();
    this.names = [];
    this.rows = [];            // present state by client
    this.events = [];
    this.cells = new Cells();
  }

  add(entry) {
    if (entry.kind === "round") {
      this.rounds.push(entry);
      for (const name in entry.metrics) this.metrics.add(name);
    } else if (entry.kind === "names") {
      entry.names.forEach((name, i) => { this.names[entry.from + i] = name; });
      this.cells.clients = Math.max(this.cells.clients, this.names.length);
    } else if (entry.kind === "cells") {
      this.cells.add(entry);
    } else if (entry.kind === "event") {
      this.events.push({ ...entry, order: this.events.length });
    }
  }
}

// Client × round, one typed array per measure; it doubles when it is full, so that a new round is cheap.
export class Cells {
  constructor() {
    this.clients = 0;
    this.rounds = 0;
    this.columns = 0;
    this.lines = 0;
    this.scored = this.weighted = false;
    this.scores = this.weights = new Float32Array(0);
    this.marks = new Uint8Array(0);
  }

  at(client, round) { return (round - 1) * this.lines + client; }

  add({ round, clients, scores, weights, marks }) {
    const most = clients === null ? scores.length : Math.max(...clients) + 1;
    this.clients = Math.max(this.clients, most);
    this.rounds = Math.max(this.rounds, round);
    if (this.clients > this.lines || this.rounds > this.columns) this.grow();
    for (let i = 0; i < scores.length; i++) {
      const place = this.at(clients === null ? i : clients[i], round);
      if (scores[i] !== null) { this.scores[place] = scores[i]; this.scored = true; }
      if (weights[i] !== null) { this.weights[place] = weights[i]; this.weighted = true; }
      this.marks[place] = MARKS[marks[i]];
    }
  }

  grow() {
    const lines = Math.max(this.clients, this.lines), columns = Math.max(this.rounds, 2 * this.columns, 64);
    const [oldLines, oldColumns] = [this.lines, this.columns];
    const larger = (old, empty) => {
      const made = new old.constructor(lines * columns).fill(empty);
      for (let r = 0; r < oldColumns; r++) made.set(old.subarray(r * oldLines, (r + 1) * oldLines), r * lines);
      return made;
    };
    this.scores = larger(this.scores, NaN);
    this.weights = larger(this.weights, NaN);
    this.marks = larger(this.marks, ABSENT);
    [this.lines, this.columns] = [lines, columns];
  }

  flaggedIn(client) {
    const rounds = [];
    for (let r = 1; r <= this.rounds; r++) {
      const mark = this.marks[this.at(client, r)];
      if (mark === FLAGGED || mark === DROPPED) rounds.push(r);
    }
    return rounds;
  }
}
