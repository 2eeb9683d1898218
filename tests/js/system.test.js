import assert from "node:assert/strict";
import { test } from "node:test";

import {
  join,
  line,
  metricsOf,
  scaleOf,
  withUnit,
} from "../../static/js/charts/system.js";

const answer = (times, attempt, values) => ({
  time: times,
  attempt: times.map(() => attempt),
  step: times.map((time) => time / 10),
  values,
});

test("a new life of the trainer begins a line of its own", () => {
  const first = answer([0, 5], 1, { cpu: [1, 2] });
  const all = join(first, answer([10, 15], 2, { cpu: [3, 4] }));

  assert.deepEqual(line(all, "cpu", "step").y, [1, 2, null, 3, 4]);
});

test("a long silence is a gap, a late sample is not", () => {
  const samples = answer([0, 10, 25, 200], 1, { cpu: [1, 2, 3, 4] });

  assert.deepEqual(line(samples, "cpu", "time").y, [1, 2, 3, null, 4]);
});

test("a machine that has more to tell leaves the other's places empty", () => {
  const all = join(
    answer([0], 1, { cpu: [1] }),
    answer([5], 2, { cpu: [2], "gpu_use/0": [50] }),
  );

  assert.deepEqual(all.values["gpu_use/0"], [null, 50]);
  assert.deepEqual(metricsOf(all, "gpu_use"), ["gpu_use/0"]);
});

test("values are reported with a unit that fits them", () => {
  assert.equal(withUnit(1.24 * 1024 ** 3, "B"), "1.24 GiB");
  assert.equal(withUnit(1_048_575, "B/s"), "1 MiB/s");
  assert.equal(withUnit(7.65, "%"), "7.7%");
  assert.equal(withUnit(null, "B"), "–");
});

test("an axis has the unit of its largest value", () => {
  assert.deepEqual(scaleOf([[3 * 1024 ** 2, null], undefined], "B/s"), {
    factor: 1024 ** 2,
    suffix: " MiB/s",
  });
  assert.deepEqual(scaleOf([[97]], "%"), { factor: 1, suffix: "%" });
});
