// The search of a log: its form, stored in the URL, and the list of matches.

import { matchItem } from "./match.js";

export class SearchBar {
  #find;
  #form;
  #search;
  #server;
  #toLine;
  #show;

  // `toLine` shows a matching line, `show` redraws the lines with their matches.
  constructor({ find, search, server, toLine, show }) {
    this.#find = find;
    this.#form = find("search");
    this.#search = search;
    this.#server = server;
    this.#toLine = toLine;
    this.#show = show;
  }

  listen() {
    this.#find("next").addEventListener("click", () => this.#turn(1));
    this.#find("previous").addEventListener("click", () => this.#turn(-1));
    this.#form.addEventListener("submit", (event) => this.#submit(event));
    this.#form.q.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.shiftKey) {
        event.preventDefault();
        if (this.#search.total) this.#turn(-1);
      }
    });
  }

  // Runs the search of the URL, if any.
  readAddress() {
    const query = new URLSearchParams(location.search);
    if (!query.get("q")) return;
    this.#form.q.value = query.get("q");
    this.#form.regex.checked = query.get("regex") === "1";
    this.#form.case.checked = query.get("case") === "1";
    this.#run(0, { isShown: !location.hash });
  }

  #values() {
    return {
      q: this.#form.q.value,
      regex: this.#form.regex.checked ? "1" : "",
      case: this.#form.case.checked ? "1" : "",
    };
  }

  #submit(event) {
    event.preventDefault();
    const values = this.#values();
    const submitted = Object.values(values).join("\0");
    if (submitted === this.#form.dataset.submitted && this.#search.total) {
      this.#turn(1);
      return;
    }
    this.#form.dataset.submitted = submitted;
    writeAddress(values);
    if (values.q) this.#run(0, { isShown: true });
    else this.#clear();
  }

  #clear() {
    this.#search.clear();
    this.#showMatches("");
    this.#show();
  }

  async #run(current, { isShown }) {
    const first = Math.floor(current / 100) * 100;
    const found = await this.#server.matches({ ...this.#values(), first });
    if (!found) {
      this.#search.clear();
      this.#showMatches("");
      return;
    }
    this.#search.take(found, current);
    this.#showMatches(this.#search.label);
    if (isShown && this.#search.match) await this.#toMatch();
    else this.#show();
  }

  async #turn(step) {
    const missing = this.#search.turn(step);
    if (missing !== null) {
      await this.#run(this.#search.current, { isShown: true });
      return;
    }
    this.#showMatches(this.#search.label);
    await this.#toMatch();
  }

  #toMatch() {
    return this.#toLine(this.#search.match.number);
  }

  #showMatches(label) {
    const { total, matches, match } = this.#search;
    this.#find("found").textContent = label;
    this.#find("next").disabled = total === 0;
    this.#find("previous").disabled = total === 0;
    const list = this.#find("matches");
    list.hidden = matches.length === 0;
    list.replaceChildren(
      ...matches.map((each) => matchItem(each, { isCurrent: each === match })),
    );
  }
}

function writeAddress(values) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(values))
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  history.replaceState(history.state, "", url);
}
