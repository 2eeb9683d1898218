import assert from "node:assert/strict";
import { test } from "node:test";

import { lowerBound, RunStore } from "../../static/js/live/store.js";
import { bucketWidth, thin } from "../../static/js/live/thinning.js";

const NOTHING = {
  attempt: 1,
  run: { last_step: 999 },
  steps: [],
  evaluations: [],
  events: [],
};

function snapshot(steps, names, evaluations = [], more = {}) {
  const clock = { steps, times: steps.map((step) => 1000 + step * 10) };
  const curves = { clock, names, width: 1, others: {}, tails: [], ...more };
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

test("a late step is inserted in order", () => {
  const store = new RunStore();

  store.apply(batch([1, { loss: 5 }], [3, { loss: 3 }], [2, { loss: 4 }]));

  assert.deepEqual(store.get("loss"), { steps: [1, 2, 3], values: [5, 4, 3] });
});

test("a snapshot of a new attempt forgets the steps that were gone back before", () => {
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

test("lowerBound is the first index that is not below", () => {
  for (const [steps, step, expected] of [
    [[], 5, 0],
    [[5], 5, 0],
    [[5], 6, 1],
    [[1, 3, 5], 0, 0],
    [[1, 3, 5], 2, 1],
    [[1, 3, 5], 5, 2],
  ])
    assert.equal(lowerBound(steps, step), expected);
});

test("a run that goes back to its checkpoint takes its steps along", () => {
  const store = new RunStore();
  const evaluations = [
    { step: 2, metrics: { "eval/heldout/mean": 0.1 } },
    { step: 4, metrics: { "eval/heldout/mean": 0.4 } },
  ];
  store.apply(snapshot([1, 2, 3, 4], { loss: { values: [5, 4, 3, 2] } }, evaluations));

  store.apply({ ...batch(), run: { last_step: 4 } });
  const isRewound = store.apply({ ...batch(), run: { last_step: 2 } });

  assert.ok(isRewound);
  assert.deepEqual(store.get("loss"), { steps: [1, 2], values: [5, 4] });
  assert.deepEqual(store.get("eval/heldout/mean"), { steps: [2], values: [0.1] });
  assert.deepEqual(store.clock.steps, [1, 2]);
});

test("a metric that the snapshot left out is unknown until its history is here", () => {
  const store = new RunStore();
  store.apply(
    snapshot([1, 2], { loss: { values: [5, 4] } }, [], { others: { kl: [1, 3, 2] } }),
  );
  store.apply(batch([3, { loss: 3, kl: 9 }]));

  assert.equal(store.get("kl"), undefined);
  assert.deepEqual(store.ranges.get("kl"), { low: 1, high: 9, last: 9 });
  assert.ok(store.names().includes("kl"));

  const curves = { kl: { steps: [1, 2], values: [1, 3] } };
  store.adopt({ curves, tails: [], through: 2 });

  assert.deepEqual(store.get("kl"), { steps: [1, 2, 3], values: [1, 3, 9] });
});

test("what came meanwhile is not there twice", () => {
  const store = new RunStore();
  store.apply(snapshot([1], {}, [], { others: { kl: [1, 1, 1] } }));
  store.apply(batch([2, { kl: 2 }], [3, { kl: 3 }]));

  const curves = { kl: { steps: [1, 2], values: [1, 2] } };
  store.adopt({ curves, tails: [], through: 2 });

  assert.deepEqual(store.get("kl").steps, [1, 2, 3]);
});

test("lowest and highest are those of all steps, however they are thinned", () => {
  const store = new RunStore();

  store.apply(snapshot([1, 2], { loss: { values: [5, 4] } }));
  store.apply(batch([3, { loss: 7 }]));

  assert.deepEqual(store.ranges.get("loss"), { low: 4, high: 7, last: 7 });
});

test("a page that stays open holds no more, and what it draws does not jump", () => {
  const store = new RunStore();
  const spike = 1_234;
  const draw = () => {
    const { steps } = store.clock;
    return thin(store.get("loss"), bucketWidth(steps[0], steps.at(-1)));
  };
  store.apply(batch([1, { loss: 0 }]));
  let before;
  for (let step = 2; step <= 10_000; step++) {
    const held = store.clock.steps.length;
    before = draw();
    const frame = batch([step, { loss: step === spike ? 99 : Math.sin(step) }]);
    store.apply({ ...frame, run: { last_step: step } });
    if (store.clock.steps.length >= held) continue;
    // It has just been thinned: but for the newest points the line is the same.
    const old = new Map(before.steps.map((s, i) => [s, before.values[i]]));
    const kept = draw().steps.filter((s) => s < step - 2 * store.width);
    assert.ok(kept.every((s) => old.has(s)));
  }

  assert.ok(store.clock.steps.length <= 3_000);
  assert.ok(store.get("loss").steps.length <= 3_000);
  assert.ok(store.get("loss").values.includes(99));
  assert.equal(store.clock.steps.at(-1), 10_000);
});

test("events are bounded, but for the phases", () => {
  const store = new RunStore();
  const phase = { type: "phase_started", body: { first_step: 1, name: "sft" } };
  store.apply({ ...batch(), events: [phase] });

  for (let i = 0; i < 3_000; i++)
    store.apply({ ...batch(), events: [{ type: "warned", step: 1, body: {} }] });

  assert.ok(store.events.length <= 1_000);
  assert.deepEqual(store.phases(), [{ firstStep: 1, name: "sft" }]);
});

test("what resumes went back before stays separate", () => {
  const store = new RunStore();
  const clock = { steps: [3, 4], times: [30, 40] };
  const tails = [{ attempt: 2, after: 2, clock, names: { loss: { values: [9, 8] } } }];

  store.apply(snapshot([1, 2], { loss: { values: [5, 4] } }, [], { tails }));

  assert.deepEqual(store.get("loss").steps, [1, 2]);
  assert.deepEqual(store.tails[0].curves.get("loss"), {
    steps: [3, 4],
    values: [9, 8],
  });
});
