// A search of a log: its matches and the current one.

import { lineId } from "./lines.js";

export class LogSearch {
  matches = []; // as the server lists them, from the one numbered `first` on
  first = 0;
  total = 0;
  stopped = "";
  current = -1;
  spans = new Map(); // a line's id -> what matched in it

  take(found, current) {
    this.matches = found.matches;
    this.first = found.first;
    this.total = found.total;
    this.stopped = found.stopped;
    this.current = found.total ? current : -1;
    this.spans = new Map(
      found.matches.map(({ number, spans }) => [lineId(number), spans]),
    );
  }

  clear() {
    this.take({ matches: [], first: 0, total: 0, stopped: "" }, -1);
  }

  // Moves `step` matches, wrapping around; returns the first match to request, or null.
  turn(step) {
    this.current = (this.current + step + this.total) % this.total;
    const isListed = this.match !== undefined;
    return isListed ? null : Math.floor(this.current / 100) * 100;
  }

  get match() {
    return this.matches[this.current - this.first];
  }

  get label() {
    if (!this.total) return `No matches. ${this.stopped}`.trim();
    return `${this.current + 1} of ${this.total}. ${this.stopped}`
      .replace(/\. $/, "")
      .trim();
  }
}
