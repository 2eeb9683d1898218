// The worker's log, where it is shown among its trainer's lines.

import { interleave } from "./merge.js";
import { LogWindow, MAX_LINES } from "./window.js";

export class WorkerLog {
  #server;
  #window = new LogWindow();

  constructor(server) {
    this.#server = server;
  }

  // Up to MAX_LINES of it; it is short.
  async open() {
    const part = await this.#server.workerPart({});
    if (!part) return;
    this.#window.replace(part);
    while (this.#window.first > 0 && this.#window.lines.length < MAX_LINES) {
      const { first, mark } = this.#window;
      const earlier = await this.#server.workerPart({ before: first, mark });
      if (!earlier?.lines.length) return;
      this.#window.prepend(earlier);
    }
  }

  // How many lines are new.
  async read() {
    const { next, mark } = this.#window;
    const part = await this.#server.workerPart({ after: next, mark });
    if (!part) return 0;
    const added = this.#window.append(part);
    this.#window.dropFirst();
    return Math.max(0, added);
  }

  get isEmpty() {
    return this.#window.size === 0;
  }

  among(main) {
    return interleave(main, this.#window);
  }

  line(number) {
    return this.#window.lines.find((line) => line.number === number);
  }
}
