// The client of a run's stream: dashboard/live/README.md describes the protocol.
// `env` is injected, so that tests run it without a browser.

// The same number as in dashboard/live/messages.py.
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
  #isReached = false; // the last poll had a response
  #isAhead = false; // the last response came from a server of an older version

  // `after`: last sequence number of the page's data, `shown`: of its HTML.
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

  // The network is back, or the page is visible again: retry without waiting.
  retryNow() {
    if (this.#stopped || this.#socket) return;
    this.#connect();
  }

  // Request a new snapshot.
  resync() {
    this.seq = 0;
    this.attempt = null;
    this.#request();
  }

  // URL of the frames after the page's data.
  get httpUrlWithQuery() {
    return this.httpUrl + this.#query();
  }

  #query() {
    const attempt = this.attempt === null ? "" : `&attempt=${this.attempt}`;
    return `?after=${this.seq}${attempt}&protocol=${PROTOCOL}`;
  }

  #connect() {
    this.env.clearTimeout(this.#timers.retry);
    // While polling works, keep showing that state instead of flickering.
    if (!this.#isReached && !this.#isAhead) this.#setLink("connecting");
    const socket = new this.env.WebSocket(this.socketUrl + this.#query());
    this.#socket = socket;
    socket.onopen = () => {
      this.env.clearTimeout(this.#timers.poll);
      if (!this.#isAhead) this.#setLink("catching-up");
      this.#expectMessage();
    };
    socket.onmessage = ({ data }) => {
      this.#expectMessage();
      const frame = JSON.parse(data);
      // Only now: some proxies open a socket just to close it.
      if (frame.type !== "protocol") {
        this.#failures = 0;
        this.#isReached = false;
      }
      this.#handle(frame);
    };
    socket.onclose = ({ code }) => {
      if (this.#socket === socket) this.#lose(code);
    };
  }

  // A connection may die silently; the server pings every 15 s.
  #expectMessage() {
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
      this.#setLink("offline", { retryIn: jittered });
    this.#timers.retry = this.env.setTimeout(() => this.#connect(), jittered);
    if (!this.#isPolling) this.#poll();
  }

  #refuse() {
    this.#end("refused");
  }

  #end(name) {
    this.stop();
    this.#setLink(name);
  }

  // An older page needs a reload, which the user decides. A newer one waits until the
  // processes of the older version are replaced.
  #handleProtocol(protocol) {
    if (protocol > PROTOCOL) this.#end("outdated");
    else {
      this.#isAhead = true;
      if (!this.#isReached) this.#setLink("ahead");
    }
  }

  // Without a socket, the same frames come over HTTP.
  async #poll() {
    this.#isPolling = true;
    this.#isReached = await this.#fetch().catch(() => false);
    this.#isPolling = false;
    if (this.#stopped || this.#socket?.readyState === 1) return;
    if (this.#isReached) this.#setLink("polling");
    this.env.clearTimeout(this.#timers.poll);
    this.#timers.poll = this.env.setTimeout(() => {
      if (!this.#isPolling) this.#poll();
    }, POLL_EVERY);
  }

  async #fetch() {
    const response = await this.env.fetch(this.httpUrlWithQuery, {
      headers: { Accept: "application/json" },
    });
    // Signed out: redirected to the sign-in page.
    if (response.redirected || [401, 403, 404].includes(response.status)) {
      this.#refuse();
      return false;
    }
    if (response.status === 409) {
      this.#handleProtocol((await response.json()).protocol);
      return false;
    }
    if (!response.ok) return false;
    this.#handle(await response.json());
    return true;
  }

  #handle(frame) {
    if (frame.type === "protocol") {
      this.#handleProtocol(frame.protocol);
      return;
    }
    this.#isAhead = false;
    if (frame.type === "ping") {
      if (frame.seq > this.seq) this.#request();
      else this.#setLink("live");
      return;
    }
    if (frame.type === "batch" && !this.#follows(frame)) return;
    if (!["snapshot", "batch"].includes(frame.type)) return; // of a later version
    this.seq = frame.seq;
    this.attempt = frame.attempt;
    // Snapshots are cached for all viewers; later data follows as a batch.
    const isBehind = frame.seq < this.shown;
    if (isBehind) this.#request();
    else if (this.#socket?.readyState === 1) this.#setLink("live");
    this.onFrame(frame, { isBehind });
  }

  #follows(batch) {
    const isGap = batch.after > this.seq;
    const isOther = this.attempt !== null && batch.attempt !== this.attempt;
    if (isGap || isOther) {
      this.#request();
      return false;
    }
    // An empty batch with the same number still has the run's state.
    return batch.seq > this.seq || (batch.seq === this.seq && !this.#socket);
  }

  #request() {
    if (this.#socket?.readyState !== 1) return; // the next connection requests it
    this.#setLink("catching-up");
    const { seq, attempt } = this;
    this.#socket.send(JSON.stringify({ type: "after", seq, attempt }));
  }

  #setLink(name, detail = {}) {
    this.onLink({ name, ...detail });
  }
}
