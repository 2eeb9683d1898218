// The state of a run on its page. No event tells of its place in the queue, or of how
// long its trainer is silent: these are read again.

const SILENCE_MS = 30_000; // without an event

export class RunState {
  #shownAt;
  #isSilent;
  #isQueued = false;
  #hasEnded = false;

  // read: fetches the run as it is now, or null; show: draws it.
  constructor({ isSilent, read, show, now = Date.now }) {
    Object.assign(this, { read, show, now });
    this.#isSilent = isSilent;
    this.#shownAt = now();
  }

  // The server keeps a snapshot since the run's newest event: it does not know that the
  // trainer fell silent since, which the page does.
  async follow({ type, run }) {
    const isStale = type === "snapshot" && this.#isSilent && !run.has_ended;
    if (!isStale) this.#take(run);
    if (type === "snapshot") this.#shownAt = 0;
    if (isStale) await this.refresh();
  }

  async refresh() {
    if (this.#hasEnded || !this.#isDue()) return;
    const run = await this.read();
    if (run && this.#isDue()) this.#take(run);
  }

  // No further updates come.
  leaveQueue() {
    this.#isQueued = false;
  }

  #isDue() {
    return this.#isQueued || this.now() - this.#shownAt > SILENCE_MS;
  }

  #take(run) {
    this.#shownAt = this.now();
    this.#isSilent = run.silence !== "";
    this.#isQueued = run.state === "queued";
    this.#hasEnded = run.has_ended;
    this.show(run);
  }
}
