import assert from "node:assert/strict";
import { test } from "node:test";

import { bucketWidth, slice, thin, thinClock } from "../../static/js/live/thinning.js";

const steps = Array.from({ length: 100_000 }, (_, i) => i + 1);
const values = steps.map((step) => Math.sin(step / 900) + (step === 41_234 ? 50 : 0));

test("a short history is not thinned", () => {
  assert.equal(bucketWidth(1, 1_000), 1);
  assert.equal(bucketWidth(1, 1_001), 4);
});

test("100,000 steps become at most 1,000 points with every spike", () => {
  const width = bucketWidth(1, 100_000);

  const thinned = thin({ steps, values }, width);

  assert.equal(width, 512);
  assert.ok(thinned.steps.length <= 1_000);
  assert.equal(Math.max(...thinned.values), Math.max(...values));
  assert.equal(thinned.steps.at(-1), 100_000);
  assert.ok(thinned.steps.every((step, i) => !i || step > thinned.steps[i - 1]));
});

test("a bucket keeps its lowest, its highest and its last", () => {
  const curve = { steps: [4, 5, 6, 7, 8, 9], values: [2, 9, 1, 5, 3, 3] };

  assert.deepEqual(thin(curve, 4), { steps: [5, 6, 7, 8, 9], values: [9, 1, 5, 3, 3] });
});

test("thinning in two strides gives what thinning in one gives", () => {
  const twice = thin(thin({ steps, values }, 64), 512);

  assert.deepEqual(twice, thin({ steps, values }, 512));
});

test("of a clock each bucket keeps its last moment", () => {
  const clock = thinClock({ steps: [1, 2, 3, 4, 9], times: [10, 20, 30, 40, 90] }, 4);

  assert.deepEqual(clock, { steps: [3, 4, 9], times: [30, 40, 90] });
});

test("a slice has its ends and, if asked for, a neighbour on either side", () => {
  const curve = { steps: [1, 3, 5, 7], values: [10, 30, 50, 70] };

  assert.deepEqual(slice(curve, 3, 5).steps, [3, 5]);
  assert.deepEqual(slice(curve, 4, 5, 1).steps, [3, 5, 7]);
  assert.deepEqual(slice(curve, 8, 9).steps, []);
});
