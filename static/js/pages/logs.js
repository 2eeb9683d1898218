// A log that is followed as it is written, searched, and linked to by line.

import { clockTime, interleave, lineId, withoutStamp } from "../live/log_merge.js";
import { idOf, LogSearch, pieces } from "../live/log_search.js";
import { LogWindow, MAX_LINES } from "../live/log_window.js";

const root = document.querySelector("[data-log]");
const find = (name) => root.querySelector(`[data-log-${name}]`);

const ASK_EVERY = 1_000;
const LOOK_EVERY = 2_000; // without a frame of the run
const LOOK_CLOSED_EVERY = 10_000; // another life may begin
const END_PIXELS = 8;

class LogPage {
  #window = new LogWindow(); // of the trainer's log, or the one that is shown
  #beside = new LogWindow(); // of the worker's, where both are
  #isBoth = root.dataset.source === "both";
  #search = new LogSearch();
  #view = find("view");
  #list = find("lines");
  #form = find("search");
  #isFollowing = !location.hash;
  #isAsking = false;
  #askedAt = 0;
  #numNew = 0;
  #isClosed = "closed" in root.dataset;
  #nodes = new Map(); // a line's id -> its element

  start() {
    this.#view.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    find("earlier").addEventListener("click", () => this.#loadEarlier());
    find("later").addEventListener("click", () => this.#read());
    find("newer").addEventListener("click", () => this.#toEnd());
    find("wrap").addEventListener("click", (event) => this.#wrap(event.currentTarget));
    find("copy").addEventListener("click", (event) => this.#copy(event.currentTarget));
    find("next").addEventListener("click", () => this.#turn(1));
    find("previous").addEventListener("click", () => this.#turn(-1));
    this.#form.addEventListener("submit", (event) => this.#submit(event));
    this.#form.q.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.shiftKey) {
        event.preventDefault();
        if (this.#search.total) this.#turn(-1);
      }
    });
    window.addEventListener("hashchange", () => this.#toHash());
    document.addEventListener("runframe", () => this.#look(ASK_EVERY));
    document.addEventListener("visibilitychange", () => this.#look(ASK_EVERY));
    setInterval(
      () => this.#look(this.#isClosed ? LOOK_CLOSED_EVERY : LOOK_EVERY),
      LOOK_EVERY,
    );
    if (localStorage.getItem("log-wrap") === "no") this.#wrap(find("wrap"));
    this.#open();
  }

  async #open() {
    if (this.#isBoth) await this.#openBeside();
    if (location.hash) await this.#toHash();
    else await this.#toEnd();
    const query = new URLSearchParams(location.search);
    if (!query.get("q")) return;
    this.#form.q.value = query.get("q");
    this.#form.regex.checked = query.get("regex") === "1";
    this.#form.case.checked = query.get("case") === "1";
    this.#find(0, !location.hash);
  }

  // What the server says, or null after its reason was shown.
  async #ask(url, parameters) {
    const { source, epoch } = root.dataset;
    const query = new URLSearchParams({ source, epoch, ...parameters });
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

  #say(text) {
    const status = find("status");
    if (status.textContent !== text) status.textContent = text;
  }

  // New lines, unless they were asked for just now or nobody looks.
  #look(every) {
    const isDue = Date.now() - this.#askedAt >= every;
    if (document.hidden || this.#isAsking || !isDue) return;
    // Far from the end, or with all that a page may hold, only the button tells.
    if (!this.#window.isEnd || (!this.#isFollowing && this.#window.isFull)) {
      this.#count();
      return;
    }
    this.#read();
  }

  async #read() {
    const { next, mark } = this.#window;
    const part = await this.#part({ after: next, mark });
    if (!part) return;
    const added = this.#window.append(part) + (await this.#readBeside());
    if (this.#isFollowing) this.#window.dropFirst();
    else this.#numNew += Math.max(0, added);
    this.#show();
  }

  // As much of the worker's log as a page may hold; it is short.
  async #openBeside() {
    const part = await this.#askBeside({});
    if (!part) return;
    this.#beside.replace(part);
    while (this.#beside.first > 0 && this.#beside.lines.length < MAX_LINES) {
      const { first, mark } = this.#beside;
      const earlier = await this.#askBeside({ before: first, mark });
      if (!earlier?.lines.length) return;
      this.#beside.prepend(earlier);
    }
  }

  async #readBeside() {
    if (!this.#isBoth) return 0;
    const { next, mark } = this.#beside;
    const part = await this.#askBeside({ after: next, mark });
    if (!part) return 0;
    const added = this.#beside.append(part);
    this.#beside.dropFirst();
    return Math.max(0, added);
  }

  #askBeside(parameters) {
    return this.#ask(root.dataset.part, { source: "supervisor", ...parameters });
  }

  async #count() {
    const { next, mark } = this.#window;
    const part = await this.#part({ after: next, mark });
    if (part?.lines.length) this.#offerNewer("Newer lines ↓");
  }

  async #part(parameters) {
    this.#isAsking = true;
    this.#askedAt = Date.now();
    const part = await this.#ask(root.dataset.part, parameters);
    this.#isAsking = false;
    if (part) this.#tell(part);
    return part;
  }

  #tell(part) {
    this.#isClosed = part.is_closed;
    const empty = find("empty");
    empty.hidden = part.size > 0 || this.#beside.size > 0;
    empty.textContent = part.missing || "Nothing has been written to this log yet.";
    const life = part.is_last_life
      ? ""
      : " A later life has a log of its own: reload the page and choose it above.";
    const state = part.is_closed ? "complete" : "live";
    this.#say(`${kilobytes(part.size)}, ${state}.${life}`);
  }

  async #toEnd() {
    const part = await this.#part({});
    if (!part) return;
    this.#isFollowing = true;
    this.#numNew = 0;
    this.#window.replace(part);
    await this.#readBeside();
    this.#show();
  }

  async #loadEarlier() {
    const { first, mark } = this.#window;
    const part = await this.#part({ before: first, mark });
    if (!part) return;
    this.#isFollowing = false;
    const height = this.#view.scrollHeight;
    const top = this.#view.scrollTop;
    this.#window.prepend(part);
    this.#draw();
    this.#view.scrollTop = top + this.#view.scrollHeight - height;
    this.#window.dropLast();
    this.#show();
  }

  async #toHash() {
    const wanted = /^#([LW])(\d{1,12})$/.exec(location.hash);
    if (!wanted) return;
    const line = { number: Number(wanted[2]), isWorker: wanted[1] === "W" };
    await this.#toLine(line);
  }

  async #toLine(wanted) {
    const where = wanted.isWorker ? this.#placeOf(wanted) : this.#lineOf(wanted);
    if (where) {
      const part = await this.#part(where);
      if (!part) return;
      this.#window.replace(part);
    }
    this.#isFollowing = false;
    this.#show();
    const line = this.#nodes.get(lineId(wanted));
    for (const other of this.#list.querySelectorAll(".is-current"))
      other.classList.remove("is-current");
    if (!line) {
      const whose = wanted.isWorker ? "of the worker" : "";
      const number = wanted.number.toLocaleString("en-US");
      this.#say(`The log shown has no line ${number} ${whose}`.trim().concat("."));
      return;
    }
    line.classList.add("is-current");
    this.#view.scrollTop = line.offsetTop - this.#view.clientHeight / 3;
  }

  // What must be asked for to show a line, if anything.
  #lineOf({ number }) {
    return this.#window.has(number) ? null : { line: number };
  }

  #placeOf({ number }) {
    const isShown = this.#lines().some(
      (line) => line.isWorker && line.number === number,
    );
    const line = this.#beside.lines.find((one) => one.number === number);
    return isShown || !line ? null : { time: Math.floor(line.time ?? 0) };
  }

  #lines() {
    if (!this.#isBoth) return this.#window.lines;
    return interleave(this.#window, this.#beside);
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.#view;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < END_PIXELS;
    this.#isFollowing = isAtEnd && this.#window.isEnd;
    if (this.#isFollowing) this.#numNew = 0;
    this.#offerNewer();
  }

  #offerNewer(text = "") {
    const button = find("newer");
    const count = this.#numNew.toLocaleString("en-US");
    const isOffered = !this.#isFollowing && (this.#numNew > 0 || text !== "");
    if (isOffered) {
      const label = `${count} new line${this.#numNew === 1 ? "" : "s"} ↓`;
      button.textContent = text || label;
    }
    button.hidden = !isOffered && (this.#isFollowing || this.#window.isEnd);
    if (!button.hidden && !button.textContent) button.textContent = "To the end ↓";
  }

  #show() {
    this.#draw();
    if (this.#isFollowing) this.#view.scrollTop = this.#view.scrollHeight;
    this.#offerNewer();
  }

  // Lines that stay keep their elements, so a selection and the scroll stay too.
  #draw() {
    const lines = this.#lines();
    const drawn = new Map();
    let before = null;
    for (const line of lines) {
      const id = lineId(line);
      const old = this.#nodes.get(id);
      const isSame = old?.dataset.text === keyOf(line, this.#search);
      const node = isSame ? old : this.#element(line);
      if (old && !isSame) old.replaceWith(node);
      drawn.set(id, node);
    }
    for (const [id, node] of this.#nodes)
      if (!drawn.has(id) && node.parentNode) node.remove();
    for (const node of drawn.values()) {
      const place = before ? before.nextSibling : this.#list.firstChild;
      if (place !== node) this.#list.insertBefore(node, place);
      before = node;
    }
    this.#nodes = drawn;
    this.#list.classList.toggle("has-times", lines.some(hasTime));
    find("earlier").hidden = this.#window.first === 0 || !this.#window.lines.length;
    find("later").hidden = this.#window.isEnd;
  }

  #element(line) {
    const item = document.createElement("li");
    item.className = line.isWorker ? "log-line log-worker" : "log-line";
    item.id = lineId(line);
    item.dataset.text = keyOf(line, this.#search);
    const number = document.createElement("a");
    number.className = "log-number number";
    number.href = `#${item.id}`;
    number.tabIndex = -1; // a stop at each of 2,000 lines would be no help
    number.textContent = line.isWorker ? "worker" : line.number;
    const text = document.createElement("bdi");
    text.className = "log-text";
    const found = this.#search.spans.get(item.id) ?? [];
    const shown = this.#isBoth ? withoutStamp(line, found) : { ...line, spans: found };
    text.append(...marked(shown.text, shown.spans));
    item.append(number, timeOf(line), text);
    if (line.num_chars > line.text.length) item.append(this.#moreButton(line, text));
    return item;
  }

  #moreButton(line, text) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "link-button log-more";
    button.textContent = `Show all ${line.num_chars.toLocaleString("en-US")} characters`;
    button.addEventListener("click", async () => {
      const source = line.isWorker ? { source: "supervisor" } : {};
      const whole = await this.#ask(root.dataset.line, { at: line.at, ...source });
      if (!whole) return;
      text.textContent = whole.text;
      button.remove();
    });
    return button;
  }

  #wrap(button) {
    const isWrapped = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", isWrapped);
    this.#view.classList.toggle("is-unwrapped", !isWrapped);
    localStorage.setItem("log-wrap", isWrapped ? "yes" : "no");
    if (this.#isFollowing) this.#view.scrollTop = this.#view.scrollHeight;
  }

  async #copy(button) {
    const lines = this.#lines();
    try {
      await navigator.clipboard.writeText(lines.map(({ text }) => text).join("\n"));
      button.textContent = `Copied ${lines.length.toLocaleString("en-US")} lines`;
    } catch {
      button.textContent = "Not allowed here";
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 2_000);
  }

  #submit(event) {
    event.preventDefault();
    const { q, regex } = this.#form;
    const asked = [q.value, regex.checked, this.#form.case.checked].join("\0");
    if (asked === this.#form.dataset.asked && this.#search.total) {
      this.#turn(1);
      return;
    }
    const url = new URL(location.href);
    const values = { q: q.value, regex: regex.checked ? "1" : "" };
    values.case = this.#form.case.checked ? "1" : "";
    for (const [name, value] of Object.entries(values))
      if (value) url.searchParams.set(name, value);
      else url.searchParams.delete(name);
    history.replaceState(history.state, "", url);
    this.#form.dataset.asked = asked;
    if (q.value) this.#find(0, true);
    else this.#clear();
  }

  #clear() {
    this.#search.clear();
    this.#showMatches("");
    this.#show();
  }

  async #find(current, isShown) {
    const found = await this.#ask(root.dataset.searchUrl, {
      q: this.#form.q.value,
      regex: this.#form.regex.checked ? "1" : "",
      case: this.#form.case.checked ? "1" : "",
      first: Math.floor(current / 100) * 100,
    });
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
      await this.#find(this.#search.current, true);
      return;
    }
    this.#showMatches(this.#search.label);
    await this.#toMatch();
  }

  #toMatch() {
    const { number, source } = this.#search.match;
    return this.#toLine({ number, isWorker: source === "supervisor" });
  }

  #showMatches(label) {
    find("found").textContent = label;
    find("next").disabled = this.#search.total === 0;
    find("previous").disabled = this.#search.total === 0;
    const list = find("matches");
    list.hidden = this.#search.matches.length === 0;
    list.replaceChildren(...this.#search.matches.map((match) => this.#match(match)));
  }

  #match(match) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    const isWorker = match.source === "supervisor";
    link.href = `#${idOf(match)}`;
    link.className = "log-number number";
    link.textContent = isWorker ? "worker" : match.number;
    link.ariaLabel = `Line ${match.number}${isWorker ? " of the worker" : ""}`;
    if (match === this.#search.match) item.setAttribute("aria-current", "true");
    const text = document.createElement("bdi");
    text.append(...marked(match.line.text, match.spans));
    const around = (lines) => {
      const block = document.createElement("bdi");
      block.className = "log-context";
      block.textContent = lines.join("\n");
      return block;
    };
    const body = document.createElement("div");
    body.className = "log-text";
    body.append(around(match.before), text, around(match.after));
    item.append(link, body);
    return item;
  }
}

function keyOf(line, search) {
  return `${line.num_chars} ${search.spans.has(lineId(line))} ${line.text}`;
}

function hasTime({ time }) {
  return time !== null && time !== undefined;
}

function timeOf(line) {
  const time = document.createElement("time");
  time.className = "log-time number";
  if (!hasTime(line)) return time;
  const whole = new Date(line.time * 1000).toISOString();
  time.dateTime = whole;
  time.title = `${whole.replace("T", " ").slice(0, 23)} UTC`;
  time.textContent = clockTime(line.time);
  return time;
}

function marked(text, spans) {
  return pieces(text, spans).map(([piece, isMatch]) => {
    if (!isMatch) return document.createTextNode(piece);
    const mark = document.createElement("mark");
    mark.textContent = piece;
    return mark;
  });
}

function kilobytes(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  if (bytes < 1024 ** 2) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / 1024 ** 2).toFixed(1)} MiB`;
}

if (root) new LogPage().start();
