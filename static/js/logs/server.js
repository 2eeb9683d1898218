// What a page asks the server about a log. An answer is null after its reason was told.

const WORKER = { source: "supervisor" };

export class LogServer {
  #log; // what the page's element says: the addresses, which log, of which life
  #say;

  constructor({ dataset }, say) {
    this.#log = dataset;
    this.#say = say;
  }

  part(parameters) {
    return this.#ask(this.#log.part, parameters);
  }

  workerPart(parameters) {
    return this.part({ ...WORKER, ...parameters });
  }

  // All of a line that is shown in part.
  whole({ at, isWorker }) {
    return this.#ask(this.#log.line, { at, ...(isWorker ? WORKER : {}) });
  }

  matches(parameters) {
    return this.#ask(this.#log.searchUrl, parameters);
  }

  async #ask(url, parameters) {
    const { source, attempt } = this.#log;
    const query = new URLSearchParams({ source, attempt, ...parameters });
    try {
      const answer = await fetch(`${url}?${query}`);
      const body = await answer.json();
      if (answer.ok) return body;
      this.#say(body.error ?? `The server answered ${answer.status}.`);
    } catch {
      this.#say("Cohort cannot be reached; asking again.");
    }
    return null;
  }
}
