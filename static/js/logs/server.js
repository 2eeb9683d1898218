// Requests about a log. The result is null after an error was shown.

export class LogServer {
  #log; // the element's data: URLs, source and attempt
  #showStatus;

  constructor({ dataset }, showStatus) {
    this.#log = dataset;
    this.#showStatus = showStatus;
  }

  part(parameters) {
    return this.#request(this.#log.part, parameters);
  }

  // The whole of a truncated line.
  whole({ at }) {
    return this.#request(this.#log.line, { at });
  }

  matches(parameters) {
    return this.#request(this.#log.searchUrl, parameters);
  }

  async #request(url, parameters) {
    const { source, attempt } = this.#log;
    const query = new URLSearchParams({ source, attempt, ...parameters });
    try {
      const answer = await fetch(`${url}?${query}`);
      const body = await answer.json();
      if (answer.ok) return body;
      this.#showStatus(body.error ?? `The server returned status ${answer.status}.`);
    } catch {
      this.#showStatus("Cannot reach Cohort. Retrying.");
    }
    return null;
  }
}
