import assert from "node:assert/strict";
import { test } from "node:test";

import { place, RunStore } from "../../static/js/live/store.js";

const NOTHING = { run: { last_step: 999 }, steps: [], evaluations: [], events: [] };

function snapshot(steps, names, evaluations = []) {
  const clock = { steps, times: steps.map((step) => 1000 + step * 10) };
  const curves = { clock, names };
  return { ...NOTHING, type: "snapshot", curves, evaluations };
}

function batch(...steps) {
  const rows = steps.map(([step, values]) => ({
    step,
    time: 1000 + step * 10,
    values,
  }));
  return { ...NOTHING, type: "batch", curves: {}, steps: rows };
}

test("a snapshot's curve without steps has the clock's", () => {
  const store = new RunStore();

  store.apply(
    snapshot([1, 2], { loss: { values: [5, 4] }, kl: { steps: [2], values: [9] } }),
  );

  assert.deepEqual(store.get("loss"), { steps: [1, 2], values: [5, 4] });
  assert.deepEqual(store.get("kl"), { steps: [2], values: [9] });
});

test("a curve does not share the clock's own array", () => {
  const store = new RunStore();
  store.apply(snapshot([1], { loss: { values: [5] }, kl: { values: [1] } }));

  store.apply(batch([2, { loss: 4 }]));

  assert.deepEqual(store.get("kl").steps, [1]);
  assert.deepEqual(store.clock.steps, [1, 2]);
});

test("a step that comes twice is kept once", () => {
  const store = new RunStore();

  store.apply(batch([1, { loss: 5 }], [2, { loss: 4 }]));
  store.apply(batch([2, { loss: 4 }], [3, { loss: 3 }]));

  assert.deepEqual(store.get("loss"), { steps: [1, 2, 3], values: [5, 4, 3] });
});

test("a step that comes late finds its place", () => {
  const store = new RunStore();

  store.apply(batch([1, { loss: 5 }], [3, { loss: 3 }], [2, { loss: 4 }]));

  assert.deepEqual(store.get("loss"), { steps: [1, 2, 3], values: [5, 4, 3] });
});

test("a snapshot of a new epoch forgets the steps that were gone back before", () => {
  const store = new RunStore();
  store.apply(batch([1, { loss: 5 }], [2, { loss: 4 }], [3, { loss: 3 }]));

  store.apply(snapshot([1], { loss: { values: [5] } }));

  assert.deepEqual(store.get("loss").steps, [1]);
  assert.equal(store.numLive, 0);
});

test("evaluations are curves of their own", () => {
  const store = new RunStore();
  const evaluations = [
    { step: 0, metrics: { "eval/a/mean": 0.1 } },
    { step: 20, metrics: { "eval/a/mean": 0.3 } },
  ];

  store.apply(snapshot([1], {}, evaluations));

  assert.deepEqual(store.get("eval/a/mean"), { steps: [0, 20], values: [0.1, 0.3] });
});

test("between two known steps the time lies on the line between them", () => {
  const store = new RunStore();
  store.apply(batch([10, {}], [20, {}]));

  assert.equal(store.timeOf(10), 1100);
  assert.equal(store.timeOf(15), 1150);
  assert.equal(store.timeOf(0), 1100);
  assert.equal(store.timeOf(99), 1200);
});

test("place finds the first index that is not below", () => {
  for (const [steps, step, expected] of [
    [[], 5, 0],
    [[5], 5, 0],
    [[5], 6, 1],
    [[1, 3, 5], 0, 0],
    [[1, 3, 5], 2, 1],
    [[1, 3, 5], 5, 2],
  ])
    assert.equal(place(steps, step), expected);
});

test("a run that goes back to its checkpoint takes its steps along", () => {
  const store = new RunStore();
  const evaluations = [
    { step: 2, metrics: { "eval/heldout/mean": 0.1 } },
    { step: 4, metrics: { "eval/heldout/mean": 0.4 } },
  ];
  store.apply(snapshot([1, 2, 3, 4], { loss: { values: [5, 4, 3, 2] } }, evaluations));

  store.apply({ ...batch(), run: { last_step: 2 } });

  assert.deepEqual(store.get("loss"), { steps: [1, 2], values: [5, 4] });
  assert.deepEqual(store.get("eval/heldout/mean"), { steps: [2], values: [0.1] });
  assert.deepEqual(store.clock.steps, [1, 2]);
});
