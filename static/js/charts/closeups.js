// Finer points of a range that somebody looks at, and the history of metrics that the
// run's snapshot left out. What is drawn stays until the answer is here.

import { place } from "../live/store.js";
import { bucketWidth, MAX_POINTS } from "../live/thinning.js";

const WAIT = 150; // ms: a zoom is often followed by another
const AGAIN_AFTER = 5_000; // ms after an answer that failed
const MAX_SINCE = 1_000; // live steps beyond a closer look until the next one
const MAX_METRICS = 100; // of one question
// The range may have MAX_POINTS, and as many around it; buckets may stick out.
const MAX_POINTS_WIDE = 2 * MAX_POINTS + 20;
const PART_STEPS = 10 * MAX_POINTS; // the most that one answer has without thinning

export class Closeups {
  #found = new Map(); // metric -> { first, last, width, through, curve }
  #wanted = new Map(); // what is asked next: key -> { metrics, range }
  #asked = new Map(); // key -> { metrics, range, controller }
  #timer = null;
  #notBefore = 0;
  #generation = 0;

  constructor({ url, store, env, onFound, onTrouble = () => {} }) {
    Object.assign(this, { url, store, env, onFound, onTrouble });
  }

  // The best that is here of a metric between two steps.
  curve(metric, range) {
    const base = this.store.get(metric);
    const near = this.#found.get(metric);
    if (!range || !base || !near || !reaches(near, range)) return base;
    const at = place(base.steps, near.through + 1);
    return {
      steps: [...near.curve.steps, ...base.steps.slice(at)],
      values: [...near.curve.values, ...base.values.slice(at)],
    };
  }

  // Asks for what charts in view lack.
  need(metrics, range) {
    const { store } = this;
    if (this.#generation !== store.generation) this.#forget();
    const lacking = metrics.filter((metric) => store.lacking.has(metric));
    if (lacking.length) this.#want(lacking, null);
    if (!range) return;
    const wide = widen(range);
    const width = bucketWidth(range.first, Math.min(range.last, store.lastStep));
    if (width >= store.width) return;
    const coarse = metrics.filter(
      (metric) => store.curves.has(metric) && !this.#isFine(metric, range, width),
    );
    if (coarse.length) this.#want(coarse, wide);
  }

  // Every step of these metrics, read anew where what is here was thinned.
  async readAll(metrics, range) {
    const { store } = this;
    const first = Math.max(1, range.first); // the first step that there can be
    const last = Math.min(range.last, store.lastStep);
    const wanted = metrics.filter(
      (metric) => store.curves.has(metric) || store.lacking.has(metric),
    );
    const isWhole = store.width === 1 && !wanted.some((m) => store.lacking.has(m));
    if (isWhole || !wanted.length) return new Map();
    const found = new Map(wanted.map((name) => [name, { steps: [], values: [] }]));
    const names = [...found.keys()];
    for (let i = 0; i < names.length; i += MAX_METRICS)
      for (let from = first; from <= last; from += PART_STEPS)
        await this.#readPart(found, {
          metrics: names.slice(i, i + MAX_METRICS),
          first: from,
          last: Math.min(last, from + PART_STEPS - 1),
        });
    return found;
  }

  async #readPart(found, { metrics, first, last }) {
    const query = new URLSearchParams({
      metrics: metrics.join(","),
      first_step: first,
      last_step: last,
      max_points: PART_STEPS,
    });
    const { attempt } = this.store;
    const answer = await this.env.fetch(`${this.url}?${query}`);
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const part = await answer.json();
    if (part.attempt !== attempt || this.store.attempt !== attempt)
      throw new Error("the run went back to a checkpoint meanwhile");
    for (const [metric, { steps, values }] of Object.entries(part.curves)) {
      for (const step of steps) found.get(metric).steps.push(step);
      for (const value of values) found.get(metric).values.push(value);
    }
  }

  #isFine(metric, range, width) {
    const near = this.#found.get(metric);
    if (!near || !reaches(near, range) || near.width > width) return false;
    return Math.min(range.last, this.store.lastStep) - near.through <= MAX_SINCE;
  }

  // A snapshot or a rewind: what is on its way is of another history.
  #forget() {
    this.#generation = this.store.generation;
    this.#found.clear();
    this.#wanted.clear();
    for (const { controller } of this.#asked.values()) controller.abort();
    this.#asked.clear();
  }

  #want(metrics, range) {
    const key = range ? `${range.first}-${range.last}` : "";
    const asked = new Set(
      [...this.#asked.values()]
        .filter((question) => question.key === key)
        .flatMap((question) => question.metrics),
    );
    const fresh = metrics.filter((metric) => !asked.has(metric));
    if (!fresh.length) return;
    // Another range is looked at by now.
    if (range) this.#dropOthers(key);
    const wanted = this.#wanted.get(key) ?? { key, range, metrics: [] };
    wanted.metrics = [...new Set([...wanted.metrics, ...fresh])];
    this.#wanted.set(key, wanted);
    const wait = Math.max(WAIT, this.#notBefore - this.env.now());
    this.#timer ??= this.env.setTimeout(() => this.#ask(), wait);
  }

  #dropOthers(key) {
    for (const known of [this.#wanted, this.#asked])
      for (const [id, question] of known) {
        if (!question.range || question.key === key) continue;
        question.controller?.abort();
        known.delete(id);
      }
  }

  #ask() {
    this.#timer = null;
    const questions = [...this.#wanted.values()];
    this.#wanted.clear();
    for (const { key, range, metrics } of questions)
      for (let i = 0; i < metrics.length; i += MAX_METRICS)
        this.#fetch({ key, range, metrics: metrics.slice(i, i + MAX_METRICS) });
  }

  async #fetch(question) {
    const controller = new AbortController();
    const id = `${question.key} ${question.metrics}`;
    this.#asked.set(id, { ...question, controller });
    const query = new URLSearchParams({ metrics: question.metrics.join(",") });
    if (question.range) {
      query.set("first_step", question.range.first);
      query.set("last_step", question.range.last);
      query.set("max_points", MAX_POINTS_WIDE);
    }
    try {
      const { signal } = controller;
      const answer = await this.env.fetch(`${this.url}?${query}`, { signal });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const body = await answer.json();
      if (!signal.aborted) this.#take(question, body);
    } catch (error) {
      if (controller.signal.aborted) return;
      this.#notBefore = this.env.now() + AGAIN_AFTER;
      this.#asked.delete(id);
      this.onTrouble(error.message);
      // Nothing else may happen to the run that would have them drawn, and so asked for.
      this.env.setTimeout(() => this.onFound(), AGAIN_AFTER);
    }
    this.#asked.delete(id);
  }

  #take({ range }, answer) {
    if (answer.attempt !== this.store.attempt) return; // asked again with the next drawing
    this.onTrouble("");
    if (!range) this.store.adopt(answer);
    else
      for (const [metric, curve] of Object.entries(answer.curves)) {
        const { width, through } = answer;
        this.#found.set(metric, { ...range, width, through, curve });
      }
    this.onFound();
  }
}

function reaches(near, range) {
  return near.first <= range.first && near.last >= Math.min(range.last, near.through);
}

// Half as much again on either side, so that lines come from somewhere and smoothing
// has a past.
export function widen({ first, last }) {
  const room = Math.ceil((last - first) / 2);
  return { first: Math.max(0, first - room), last: last + room };
}
