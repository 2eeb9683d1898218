// A run's series as the page holds them. A step seen twice is kept once.

export class RunStore {
  constructor() {
    this.#clear();
  }

  #clear() {
    this.curves = new Map(); // metric -> { steps, values }, by rising step
    this.clock = { steps: [], times: [] }; // seconds since 1970
    this.evaluations = new Map(); // metric -> { steps, values }
    this.events = [];
    this.lastStep = 0;
    this.numLive = 0; // steps that came one by one since the snapshot
  }

  // Every metric's name, those of the training steps first.
  names() {
    return [...this.curves.keys(), ...this.evaluations.keys()];
  }

  get(metric) {
    return this.curves.get(metric) ?? this.evaluations.get(metric);
  }

  apply(frame) {
    if (frame.type === "snapshot") this.#replace(frame);
    for (const step of frame.steps) this.#putStep(step);
    for (const { step, metrics } of frame.evaluations)
      this.#putAll(this.evaluations, step, metrics);
    this.events.push(...frame.events);
    this.lastStep = frame.run.last_step;
    this.#forgetAfter(this.lastStep);
  }

  // A resume goes back to its checkpoint: the steps past it are history no longer.
  #forgetAfter(step) {
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
    for (const [metric, { steps, values }] of Object.entries(curves.names))
      this.curves.set(metric, { steps: steps ?? [...this.clock.steps], values });
  }

  #putStep({ step, time, values }) {
    this.numLive += 1;
    put(this.clock.steps, this.clock.times, step, time);
    this.#putAll(this.curves, step, values);
  }

  #putAll(curves, step, values) {
    for (const [metric, value] of Object.entries(values)) {
      if (!curves.has(metric)) curves.set(metric, { steps: [], values: [] });
      const curve = curves.get(metric);
      put(curve.steps, curve.values, step, value);
    }
  }

  // The phases that have begun, by their first step. A resumed run says it again.
  phases() {
    const found = new Map();
    for (const { type, body } of this.events)
      if (type === "phase_started" && body.first_step <= this.lastStep + 1)
        found.set(body.first_step, body.name);
    return [...found]
      .sort(([a], [b]) => a - b)
      .map(([firstStep, name]) => ({ firstStep, name }));
  }

  // When a step ended; between two known steps, on the line between them.
  timeOf(step) {
    const { steps, times } = this.clock;
    const right = place(steps, step);
    if (steps[right] === step || right === 0) return times[right];
    if (right === steps.length) return times[right - 1];
    const share = (step - steps[right - 1]) / (steps[right] - steps[right - 1]);
    return times[right - 1] + share * (times[right] - times[right - 1]);
  }
}

function put(steps, values, step, value) {
  const at = place(steps, step);
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
  steps.length = values.length = place(steps, last + 1);
}

// The first index whose step is not below `step`; new steps come last, so look there.
export function place(steps, step) {
  if (!steps.length || steps.at(-1) < step) return steps.length;
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}
