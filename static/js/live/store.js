// The page's copy of a run's series. A repeated step replaces the earlier one.

import { bucketWidth, thin, thinClock } from "./thinning.js";

// A page may stay open for days: above this, the series are downsampled.
const MAX_STEPS = 3_000;
const MAX_EVENTS = 1_000;

export class RunStore {
  constructor() {
    this.#clear();
  }

  #clear() {
    this.curves = new Map(); // metric -> { steps, values }, by rising step
    this.clock = { steps: [], times: [] }; // seconds since 1970
    this.evaluations = new Map(); // metric -> { steps, values }
    this.ranges = new Map(); // metric -> { low, high, last }, over all steps
    this.lacking = new Set(); // metrics without their history before this page
    this.tails = []; // superseded segments, newest first
    this.events = [];
    this.attempt = null;
    this.lastStep = 0;
    this.numSteps = 0;
    this.isLive = false; // more steps may follow
    this.fork = null; // the fork point, and the parents
    this.width = 1; // of the buckets of the downsampled steps
    this.numLive = 0; // live steps since the snapshot
    this.generation = (this.generation ?? 0) + 1; // responses to earlier requests are ignored
  }

  // Every metric's name, those of the training steps first.
  names() {
    return [...new Set([...this.ranges.keys(), ...this.evaluations.keys()])];
  }

  // Undefined for a metric without its history.
  get(metric) {
    if (this.lacking.has(metric)) return undefined;
    return this.curves.get(metric) ?? this.evaluations.get(metric);
  }

  // The lowest, highest and last value, over all steps; the page has all evaluations.
  rangeOf(metric) {
    const values = this.evaluations.get(metric)?.values;
    if (!values?.length) return this.ranges.get(metric);
    return { low: Math.min(...values), high: Math.max(...values), last: values.at(-1) };
  }

  // Returns whether the run resumed from an earlier checkpoint; a snapshot then follows.
  apply(frame) {
    const isRewound = frame.type === "batch" && frame.run.last_step < this.lastStep;
    if (frame.type === "snapshot") this.#replace(frame);
    for (const step of frame.steps) this.#putStep(step);
    for (const { step, metrics } of frame.evaluations)
      this.#putAll(this.evaluations, step, metrics);
    this.events.push(...frame.events);
    this.#boundEvents();
    this.attempt = frame.attempt;
    this.lastStep = frame.run.last_step;
    this.numSteps = frame.run.num_steps ?? 0;
    this.isLive = frame.run.has_ended === false;
    this.fork = frame.run.fork ?? null;
    this.#truncateAfter(this.lastStep);
    if (this.clock.steps.length > MAX_STEPS) this.#thin();
    return isRewound;
  }

  // The history of metrics that the snapshot left out.
  adopt({ curves, tails, through }) {
    for (const [metric, curve] of Object.entries(curves)) {
      const since = this.curves.get(metric) ?? { steps: [], values: [] };
      const at = lowerBound(since.steps, through + 1);
      this.curves.set(metric, {
        steps: [...curve.steps, ...since.steps.slice(at)],
        values: [...curve.values, ...since.values.slice(at)],
      });
      this.lacking.delete(metric);
    }
    for (const tail of tails) {
      const known = this.tails.find(({ attempt }) => attempt === tail.attempt);
      if (known)
        for (const [name, curve] of readTail(tail).curves)
          known.curves.set(name, curve);
      else this.tails.push(readTail(tail));
    }
  }

  // A resume continues from its checkpoint and drops the later steps.
  #truncateAfter(step) {
    cut(this.clock.steps, this.clock.times, step);
    for (const { steps, values } of [
      ...this.curves.values(),
      ...this.evaluations.values(),
    ])
      cut(steps, values, step);
  }

  #replace({ curves }) {
    this.#clear();
    this.clock = curves.clock;
    this.width = curves.width;
    this.curves = readCurves(curves);
    for (const [metric, { values }] of this.curves) this.#widen(metric, ...values);
    for (const [metric, [low, high, last]] of Object.entries(curves.others)) {
      this.ranges.set(metric, { low, high, last });
      this.lacking.add(metric);
    }
    this.tails = curves.tails.map(readTail);
  }

  #putStep({ step, time, values }) {
    this.numLive += 1;
    put(this.clock.steps, this.clock.times, step, time);
    this.#putAll(this.curves, step, values);
    for (const [metric, value] of Object.entries(values)) this.#widen(metric, value);
  }

  #putAll(curves, step, values) {
    for (const [metric, value] of Object.entries(values)) {
      if (!curves.has(metric)) curves.set(metric, { steps: [], values: [] });
      const curve = curves.get(metric);
      put(curve.steps, curve.values, step, value);
    }
  }

  #widen(metric, ...values) {
    const range = this.ranges.get(metric) ?? { low: Infinity, high: -Infinity };
    for (const value of values) {
      range.low = Math.min(range.low, value);
      range.high = Math.max(range.high, value);
      range.last = value;
    }
    this.ranges.set(metric, range);
  }

  #thin() {
    const { steps } = this.clock;
    this.width = Math.max(this.width, bucketWidth(steps[0], steps.at(-1)));
    this.clock = thinClock(this.clock, this.width);
    for (const curves of [this.curves, this.evaluations])
      for (const [metric, curve] of curves) curves.set(metric, thin(curve, this.width));
  }

  // Phases are drawn however old they are.
  #boundEvents() {
    if (this.events.length <= MAX_EVENTS) return;
    const from = this.events.length - MAX_EVENTS / 2;
    this.events = this.events.filter(
      ({ type }, i) => i >= from || type === "phase_started",
    );
  }

  // Phases by their first step. A resumed run repeats the event.
  phases() {
    const names = new Map();
    for (const { type, body } of this.events)
      if (type === "phase_started" && body.first_step <= this.lastStep + 1)
        names.set(body.first_step, body.name);
    return [...names]
      .sort(([a], [b]) => a - b)
      .map(([firstStep, name]) => ({ firstStep, name }));
  }

  // When a step ended.
  timeOf(step) {
    return interpolate(this.clock.steps, this.clock.times, step);
  }
}

function readCurves({ clock, names }) {
  return new Map(
    Object.entries(names).map(([metric, { steps, values }]) => [
      metric,
      { steps: steps ?? [...clock.steps], values },
    ]),
  );
}

function readTail(tail) {
  return { ...tail, curves: readCurves(tail) };
}

// The value at a step, linearly interpolated.
export function interpolate(steps, values, step) {
  const right = lowerBound(steps, step);
  if (steps[right] === step || right === 0) return values[right];
  if (right === steps.length) return values[right - 1];
  const share = (step - steps[right - 1]) / (steps[right] - steps[right - 1]);
  return values[right - 1] + share * (values[right] - values[right - 1]);
}

function put(steps, values, step, value) {
  const at = lowerBound(steps, step);
  if (steps[at] === step) values[at] = value;
  else if (at === steps.length) {
    steps.push(step);
    values.push(value);
  } else {
    steps.splice(at, 0, step);
    values.splice(at, 0, value);
  }
}

function cut(steps, values, last) {
  if (!(steps.at(-1) > last)) return;
  steps.length = values.length = lowerBound(steps, last + 1);
}

// The first index whose step is not below `step`; the end first, where new steps come.
export function lowerBound(steps, step) {
  if (!steps.length || steps.at(-1) < step) return steps.length;
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}
