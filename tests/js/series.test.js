import assert from "node:assert/strict";
import { test } from "node:test";

import {
  alignSteps,
  clipRange,
  combine,
  smooth,
  timeUnit,
} from "../../static/js/charts/series.js";

test("smoothing keeps a constant line where it is", () => {
  for (const value of smooth([3, 3, 3, 3], 0.9)) assert.ok(Math.abs(value - 3) < 1e-12);
});

test("smoothing equals a case worked by hand", () => {
  // 0.5 * 0 + 0.5 * 1 = 0.5 of mass 0.5; then 0.25 + 1.5 = 1.75 of mass 0.75.
  const [first, second] = smooth([1, 3], 0.5);

  assert.equal(first, 1);
  assert.ok(Math.abs(second - 1.75 / 0.75) < 1e-12);
});

test("no smoothing gives the values themselves", () => {
  const values = [1, 9, 2];

  assert.equal(smooth(values, 0), values);
});

// TensorBoard's own loop (vz_line_chart2, resmoothDataset), as published.
function smoothAsTensorBoard(values, weight) {
  let last = values.length > 0 ? 0 : Number.NaN;
  let numAccum = 0;
  const isConstant = values.every((v) => v === values[0]);
  return values.map((next) => {
    if (isConstant || !Number.isFinite(next)) return next;
    last = last * weight + (1 - weight) * next;
    numAccum++;
    const debiasWeight = weight === 1 ? 1 : 1 - weight ** numAccum;
    return last / debiasWeight;
  });
}

test("smoothing equals TensorBoard's, with numbers that are none and without", () => {
  const walk = Array.from({ length: 300 }, (_, i) => Math.sin(i / 7) + (i % 13) / 5);
  const holey = walk.map((v, i) => (i % 31 === 4 ? Number.NaN : v));
  holey[0] = Number.NaN;
  holey[9] = Number.POSITIVE_INFINITY;
  for (const values of [walk, holey, [2, 2, 2], [Number.NaN], []])
    for (const weight of [0.1, 0.6, 0.99]) {
      const [ours, theirs] = [
        smooth(values, weight),
        smoothAsTensorBoard(values, weight),
      ];
      ours.forEach((v, i) => {
        if (Number.isFinite(theirs[i])) assert.ok(Math.abs(v - theirs[i]) < 1e-9);
        else assert.ok(Object.is(v, theirs[i]));
      });
    }
});

test("outliers are what lies outside most of the values, and a little more", () => {
  const values = Array.from({ length: 101 }, (_, i) => i);

  const [low, high] = clipRange(values);

  assert.ok(Math.abs(low - (5 - 9)) < 1e-9);
  assert.ok(Math.abs(high - (95 + 9)) < 1e-9);
  assert.equal(clipRange([3, 3, 3]), null);
  assert.equal(clipRange([]), null);
});

const CURVES = {
  mean: { steps: [1, 2, 3, 5], values: [1, 2, 3, 5] },
  std: { steps: [2, 3, 4, 5], values: [0.5, 0.5, 0.5, 1] },
};
const get = (metric) => CURVES[metric];

test("a sum has values where all its metrics have one", () => {
  const upper = combine(get, [
    ["mean", 1],
    ["std", 1],
  ]);

  assert.deepEqual(upper, { steps: [2, 3, 5], values: [2.5, 3.5, 6] });
});

test("a constant and a negative factor make a rest", () => {
  const rest = combine(get, [["std", -1]], 1);

  assert.deepEqual(rest.values, [0.5, 0.5, 0.5, 0]);
});

test("a metric that is not there makes the sum empty", () => {
  assert.deepEqual(
    combine(get, [
      ["mean", 1],
      ["never", 1],
    ]).steps,
    [],
  );
});

test("layers of a stack get the same steps", () => {
  const [one, empty, other] = alignSteps([
    CURVES.mean,
    { steps: [], values: [] },
    CURVES.std,
  ]);

  assert.deepEqual(one, { steps: [2, 3, 5], values: [2, 3, 5] });
  assert.deepEqual(other, { steps: [2, 3, 5], values: [0.5, 0.5, 1] });
  assert.deepEqual(empty.steps, []);
});

test("times are reported in the unit that reads best", () => {
  assert.equal(timeUnit(90).name, "seconds");
  assert.equal(timeUnit(600).name, "minutes");
  assert.equal(timeUnit(20_000).name, "hours");
  assert.equal(timeUnit(1_000_000).name, "days");
});
