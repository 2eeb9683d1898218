// Finer points of the visible range, and the history of metrics that the run's snapshot
// left out. Charts keep their points until the response arrives.

import { lowerBound } from "../live/store.js";
import { bucketWidth, MAX_POINTS } from "../live/thinning.js";

const WAIT = 150; // ms: a zoom is often followed by another
const RETRY_AFTER = 5_000; // ms after a failed request
const MAX_SINCE = 1_000; // live steps after a response until the next request
const MAX_METRICS = 100; // per request
// The range may have MAX_POINTS, and as many around it; buckets may stick out.
const MAX_POINTS_WIDE = 2 * MAX_POINTS + 20;
const PART_STEPS = 10 * MAX_POINTS; // maximum of one response without downsampling

export class Closeups {
  #loaded = new Map(); // metric -> { first, last, width, through, curve }
  #queued = new Map(); // next requests: key -> { metrics, range }
  #pending = new Map(); // sent requests: key -> { metrics, range, controller }
  #timer = null;
  #notBefore = 0;
  #generation = 0;

  constructor({ url, store, env, onFound, onTrouble = () => {} }) {
    Object.assign(this, { url, store, env, onFound, onTrouble });
  }

  // The finest available points of a metric between two steps.
  curve(metric, range) {
    const base = this.store.get(metric);
    const near = this.#loaded.get(metric);
    if (!range || !base || !near || !reaches(near, range)) return base;
    const at = lowerBound(base.steps, near.through + 1);
    return {
      steps: [...near.curve.steps, ...base.steps.slice(at)],
      values: [...near.curve.values, ...base.values.slice(at)],
    };
  }

  // Requests what visible charts are missing.
  need(metrics, range) {
    const { store } = this;
    if (this.#generation !== store.generation) this.#reset();
    const lacking = metrics.filter((metric) => store.lacking.has(metric));
    if (lacking.length) this.#queue(lacking, null);
    if (!range) return;
    const wide = widen(range);
    const width = bucketWidth(range.first, Math.min(range.last, store.lastStep));
    if (width >= store.width) return;
    const coarse = metrics.filter(
      (metric) => store.curves.has(metric) && !this.#isFine(metric, range, width),
    );
    if (coarse.length) this.#queue(coarse, wide);
  }

  // Every step of these metrics, requested again where the page has downsampled points.
  async readAll(metrics, range) {
    const { store } = this;
    const first = Math.max(1, range.first); // steps count from 1
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
    const response = await this.env.fetch(`${this.url}?${query}`);
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    const part = await response.json();
    if (part.attempt !== attempt || this.store.attempt !== attempt)
      throw new Error("the run resumed from an earlier checkpoint meanwhile");
    for (const [metric, { steps, values }] of Object.entries(part.curves)) {
      for (const step of steps) found.get(metric).steps.push(step);
      for (const value of values) found.get(metric).values.push(value);
    }
  }

  #isFine(metric, range, width) {
    const near = this.#loaded.get(metric);
    if (!near || !reaches(near, range) || near.width > width) return false;
    return Math.min(range.last, this.store.lastStep) - near.through <= MAX_SINCE;
  }

  // After a snapshot or a resume, pending responses are of another history.
  #reset() {
    this.#generation = this.store.generation;
    this.#loaded.clear();
    this.#queued.clear();
    for (const { controller } of this.#pending.values()) controller.abort();
    this.#pending.clear();
  }

  #queue(metrics, range) {
    const key = range ? `${range.first}-${range.last}` : "";
    const sent = new Set(
      [...this.#pending.values()]
        .filter((request) => request.key === key)
        .flatMap((request) => request.metrics),
    );
    const fresh = metrics.filter((metric) => !sent.has(metric));
    if (!fresh.length) return;
    // Another range is visible now.
    if (range) this.#dropOthers(key);
    const wanted = this.#queued.get(key) ?? { key, range, metrics: [] };
    wanted.metrics = [...new Set([...wanted.metrics, ...fresh])];
    this.#queued.set(key, wanted);
    const wait = Math.max(WAIT, this.#notBefore - this.env.now());
    this.#timer ??= this.env.setTimeout(() => this.#send(), wait);
  }

  #dropOthers(key) {
    for (const known of [this.#queued, this.#pending])
      for (const [id, request] of known) {
        if (!request.range || request.key === key) continue;
        request.controller?.abort();
        known.delete(id);
      }
  }

  #send() {
    this.#timer = null;
    const requests = [...this.#queued.values()];
    this.#queued.clear();
    for (const { key, range, metrics } of requests)
      for (let i = 0; i < metrics.length; i += MAX_METRICS)
        this.#fetch({ key, range, metrics: metrics.slice(i, i + MAX_METRICS) });
  }

  async #fetch(request) {
    const controller = new AbortController();
    const id = `${request.key} ${request.metrics}`;
    this.#pending.set(id, { ...request, controller });
    const query = new URLSearchParams({ metrics: request.metrics.join(",") });
    if (request.range) {
      query.set("first_step", request.range.first);
      query.set("last_step", request.range.last);
      query.set("max_points", MAX_POINTS_WIDE);
    }
    try {
      const { signal } = controller;
      const response = await this.env.fetch(`${this.url}?${query}`, { signal });
      if (!response.ok) throw new Error(`HTTP ${response.status}`);
      const body = await response.json();
      if (!signal.aborted) this.#take(request, body);
    } catch (error) {
      if (controller.signal.aborted) return;
      this.#notBefore = this.env.now() + RETRY_AFTER;
      this.#pending.delete(id);
      this.onTrouble(error.message);
      // Redraw, which requests them again, even if the run sends nothing more.
      this.env.setTimeout(() => this.onFound(), RETRY_AFTER);
    }
    this.#pending.delete(id);
  }

  #take({ range }, response) {
    if (response.attempt !== this.store.attempt) return; // requested again at the next redraw
    this.onTrouble("");
    if (!range) this.store.adopt(response);
    else
      for (const [metric, curve] of Object.entries(response.curves)) {
        const { width, through } = response;
        this.#loaded.set(metric, { ...range, width, through, curve });
      }
    this.onFound();
  }
}

function reaches(near, range) {
  return near.first <= range.first && near.last >= Math.min(range.last, near.through);
}

// Half as much again on either side, for lines at the edges and for smoothing.
export function widen({ first, last }) {
  const room = Math.ceil((last - first) / 2);
  return { first: Math.max(0, first - room), last: last + room };
}
