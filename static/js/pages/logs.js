// A live log with search and links to lines.

import { size } from "../live/numbers.js";
import { LogLines } from "../logs/lines.js";
import { LogSearch } from "../logs/search.js";
import { SearchBar } from "../logs/search_bar.js";
import { LogServer } from "../logs/server.js";
import { listenToCopy, listenToWrap } from "../logs/tools.js";
import { LogWindow } from "../logs/window.js";

const root = document.querySelector("[data-log]");
const find = (name) => root.querySelector(`[data-log-${name}]`);

const ranks = document.querySelector("[data-log-ranks]");
ranks?.addEventListener("change", () => ranks.requestSubmit());

const MIN_INTERVAL = 1_000;
const POLL_INTERVAL = 2_000; // without a frame of the run
const CLOSED_INTERVAL = 10_000; // another attempt may start
const END_PIXELS = 8;

class LogPage {
  #server = new LogServer(root, (text) => this.#showStatus(text));
  #window = new LogWindow();
  #search = new LogSearch();
  #drawn = new LogLines({
    list: find("lines"),
    search: this.#search,
    server: this.#server,
  });
  #bar = new SearchBar({
    find,
    search: this.#search,
    server: this.#server,
    toLine: (number) => this.#toLine(number),
    show: () => this.#show(),
  });
  #view = find("view");
  #isFollowing = !lineOfHash();
  #isLoading = false;
  #requestedAt = 0;
  #numNew = 0;
  #isClosed = "closed" in root.dataset;

  start() {
    this.#view.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    find("earlier").addEventListener("click", () => this.#loadEarlier());
    find("later").addEventListener("click", () => this.#read());
    find("newer").addEventListener("click", () => this.#toEnd());
    window.addEventListener("hashchange", () => this.#toHash());
    document.addEventListener("runframe", () => this.#poll(MIN_INTERVAL));
    document.addEventListener("visibilitychange", () => this.#poll(MIN_INTERVAL));
    setInterval(
      () => this.#poll(this.#isClosed ? CLOSED_INTERVAL : POLL_INTERVAL),
      POLL_INTERVAL,
    );
    const onWrap = () => this.#followEnd();
    listenToWrap(find("wrap"), { view: this.#view, onWrap });
    listenToCopy(find("copy"), () => this.#window.lines);
    this.#bar.listen();
    this.#fill();
    window.addEventListener("resize", () => this.#fill());
    this.#open();
  }

  // The view reaches down to the end of the screen.
  #fill() {
    const top = this.#view.getBoundingClientRect().top + window.scrollY;
    this.#view.style.setProperty("--log-top", `${Math.round(top)}px`);
    this.#followEnd();
  }

  async #open() {
    if (lineOfHash()) await this.#toHash();
    else await this.#toEnd();
    this.#bar.readAddress();
  }

  #showStatus(text) {
    const status = find("status");
    if (status.textContent !== text) status.textContent = text;
  }

  // Reads new lines, unless the last request is recent or the page is hidden.
  #poll(every) {
    const isDue = Date.now() - this.#requestedAt >= every;
    if (document.hidden || this.#isLoading || !isDue) return;
    // Away from the end, or with a full window, only the button changes.
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
    const added = this.#window.append(part);
    if (this.#isFollowing) this.#window.dropFirst();
    else this.#numNew += Math.max(0, added);
    this.#show();
  }

  async #count() {
    const { next, mark } = this.#window;
    const part = await this.#part({ after: next, mark });
    if (part?.lines.length) this.#offerNewer("Newer lines ↓");
  }

  async #part(parameters) {
    this.#isLoading = true;
    this.#requestedAt = Date.now();
    const part = await this.#server.part(parameters);
    this.#isLoading = false;
    if (part) this.#showState(part);
    return part;
  }

  #showState(part) {
    this.#isClosed = part.is_closed;
    const empty = find("empty");
    empty.hidden = part.size > 0;
    empty.textContent = part.missing || "This log is empty so far.";
    const note = part.is_last_attempt
      ? ""
      : " There is a later attempt: reload the page and choose it above.";
    const state = part.is_closed ? "complete" : "live";
    this.#showStatus(`${size(part.size)}, ${state}.${note}`);
  }

  async #toEnd() {
    const part = await this.#part({});
    if (!part) return;
    this.#isFollowing = true;
    this.#numNew = 0;
    this.#window.replace(part);
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
    const number = lineOfHash();
    if (number) await this.#toLine(number);
  }

  async #toLine(number) {
    if (!this.#window.has(number)) {
      const part = await this.#part({ line: number });
      if (!part) return;
      this.#window.replace(part);
    }
    this.#isFollowing = false;
    this.#show();
    const line = this.#drawn.setCurrent(number);
    if (!line) {
      this.#showStatus(`This log has no line ${number.toLocaleString("en-US")}.`);
      return;
    }
    this.#view.scrollTop = line.offsetTop - this.#view.clientHeight / 3;
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
    if (!isOffered) button.textContent = "Jump to end ↓";
    button.hidden = this.#isFollowing;
  }

  #show() {
    this.#draw();
    this.#followEnd();
    this.#offerNewer();
  }

  #draw() {
    this.#drawn.draw(this.#window.lines);
    find("earlier").hidden = this.#window.first === 0 || !this.#window.lines.length;
    find("later").hidden = this.#window.isEnd;
  }

  #followEnd() {
    if (this.#isFollowing) this.#view.scrollTop = this.#view.scrollHeight;
  }
}

// The line's number in the URL's fragment, or 0.
function lineOfHash() {
  return Number(/^#L(\d{1,12})$/.exec(location.hash)?.[1] ?? 0);
}

if (root) new LogPage().start();
