// The client of a run's stream: dashboard/live/README.md describes the protocol.
// Everything it touches comes in, so that tests run it without a browser.

// As in dashboard/live/messages.py, which says when it rises.
export const PROTOCOL = 2;

const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;
const POLL_EVERY = 4_000;
const SILENCE = 40_000;
const REFUSED = new Set([4401, 4403, 4404]);

export class RunStream {
  #socket = null;
  #timers = {};
  #failures = 0;
  #isPolling = false;
  #stopped = false;
  #isReached = false; // the last poll was answered
  #isAhead = false; // what answered last was a server of an older version

  // `after` is what the page holds, `shown` what its HTML was made of.
  constructor({ socketUrl, httpUrl, after = 0, shown = 0, attempt = null, ...rest }) {
    const { env, ...handlers } = rest;
    this.socketUrl = socketUrl;
    this.httpUrl = httpUrl;
    this.seq = after;
    this.shown = shown;
    this.attempt = after > 0 ? attempt : null;
    this.env = env;
    this.onFrame = handlers.onFrame;
    this.onLink = handlers.onLink ?? (() => {});
  }

  start() {
    this.#stopped = false;
    this.#connect();
  }

  stop() {
    this.#stopped = true;
    for (const timer of Object.values(this.#timers)) this.env.clearTimeout(timer);
    this.#drop();
  }

  // The network is back, or the page is looked at again: do not wait any longer.
  retryNow() {
    if (this.#stopped || this.#socket) return;
    this.#connect();
  }

  // Ask for everything again, as a snapshot.
  resync() {
    this.seq = 0;
    this.attempt = null;
    this.#ask();
  }

  // Of what this page lacks.
  get httpAddress() {
    return this.httpUrl + this.#query();
  }

  #query() {
    const attempt = this.attempt === null ? "" : `&attempt=${this.attempt}`;
    return `?after=${this.seq}${attempt}&protocol=${PROTOCOL}`;
  }

  #connect() {
    this.env.clearTimeout(this.#timers.retry);
    // Polling goes on meanwhile, and says so; a flickering state helps nobody.
    if (!this.#isReached && !this.#isAhead) this.#link("connecting");
    const socket = new this.env.WebSocket(this.socketUrl + this.#query());
    this.#socket = socket;
    socket.onopen = () => {
      this.env.clearTimeout(this.#timers.poll);
      if (!this.#isAhead) this.#link("catching-up");
      this.#listen();
    };
    socket.onmessage = ({ data }) => {
      this.#listen();
      const frame = JSON.parse(data);
      // Only now: some proxies open a socket just to close it.
      if (frame.type !== "protocol") {
        this.#failures = 0;
        this.#isReached = false;
      }
      this.#take(frame);
    };
    socket.onclose = ({ code }) => {
      if (this.#socket === socket) this.#lose(code);
    };
  }

  // A connection may die without a word; the server pings every 15 s.
  #listen() {
    this.env.clearTimeout(this.#timers.silence);
    this.#timers.silence = this.env.setTimeout(() => {
      this.#drop();
      this.#lose(1006);
    }, SILENCE);
  }

  #drop() {
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #lose(code) {
    this.#socket = null;
    this.env.clearTimeout(this.#timers.silence);
    if (this.#stopped) return;
    if (REFUSED.has(code)) {
      this.#refuse();
      return;
    }
    const wait = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** this.#failures);
    const jittered = wait * (0.5 + this.env.random() / 2);
    this.#failures += 1;
    if (!this.#isReached && !this.#isAhead)
      this.#link("offline", { retryIn: jittered });
    this.#timers.retry = this.env.setTimeout(() => this.#connect(), jittered);
    if (!this.#isPolling) this.#poll();
  }

  #refuse() {
    this.#end("refused");
  }

  #end(name) {
    this.stop();
    this.#link(name);
  }

  // Only a reload brings an older page up to date, and when is up to its reader. A newer
  // one waits for a process of its version, as others are being replaced.
  #meet(protocol) {
    if (protocol > PROTOCOL) this.#end("outdated");
    else {
      this.#isAhead = true;
      if (!this.#isReached) this.#link("ahead");
    }
  }

  // While there is no socket the same frames come over HTTP.
  async #poll() {
    this.#isPolling = true;
    this.#isReached = await this.#fetch().catch(() => false);
    this.#isPolling = false;
    if (this.#stopped || this.#socket?.readyState === 1) return;
    if (this.#isReached) this.#link("polling");
    this.env.clearTimeout(this.#timers.poll);
    this.#timers.poll = this.env.setTimeout(() => {
      if (!this.#isPolling) this.#poll();
    }, POLL_EVERY);
  }

  async #fetch() {
    const answer = await this.env.fetch(this.httpAddress, {
      headers: { Accept: "application/json" },
    });
    // Signed out: the address leads to the sign-in page.
    if (answer.redirected || [401, 403, 404].includes(answer.status)) {
      this.#refuse();
      return false;
    }
    if (answer.status === 409) {
      this.#meet((await answer.json()).protocol);
      return false;
    }
    if (!answer.ok) return false;
    this.#take(await answer.json());
    return true;
  }

  #take(frame) {
    if (frame.type === "protocol") {
      this.#meet(frame.protocol);
      return;
    }
    this.#isAhead = false;
    if (frame.type === "ping") {
      if (frame.seq > this.seq) this.#ask();
      else this.#link("live");
      return;
    }
    if (frame.type === "batch" && !this.#follows(frame)) return;
    if (!["snapshot", "batch"].includes(frame.type)) return; // a later version's
    this.seq = frame.seq;
    this.attempt = frame.attempt;
    // A server keeps a snapshot for all viewers, and what came since is a batch.
    const isBehind = frame.seq < this.shown;
    if (isBehind) this.#ask();
    else if (this.#socket?.readyState === 1) this.#link("live");
    this.onFrame(frame, { isBehind });
  }

  #follows(batch) {
    const isGap = batch.after > this.seq;
    const isOther = this.attempt !== null && batch.attempt !== this.attempt;
    if (isGap || isOther) {
      this.#ask();
      return false;
    }
    // An empty batch at the same number still says how the run stands.
    return batch.seq > this.seq || (batch.seq === this.seq && !this.#socket);
  }

  #ask() {
    if (this.#socket?.readyState !== 1) return; // the next connection asks
    this.#link("catching-up");
    const { seq, attempt } = this;
    this.#socket.send(JSON.stringify({ type: "after", seq, attempt }));
  }

  #link(name, detail = {}) {
    this.onLink({ name, ...detail });
  }
}
