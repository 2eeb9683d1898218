import assert from "node:assert/strict";
import { test } from "node:test";

import { drawnWith } from "../../static/js/live/numbers.js";

test("the edges of a band are drawn with its metric", () => {
  const metrics = ["reward/p10", "reward/p90", "eval/heldout/mean/low", "a/low"];

  assert.deepEqual(metrics.map(drawnWith), [
    "reward/mean",
    "reward/mean",
    "eval/heldout/mean",
    "a/low",
  ]);
});
