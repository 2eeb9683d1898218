import assert from "node:assert/strict";
import { test } from "node:test";

import { insertInOrder, isBefore } from "../../static/js/live/metric_order.js";

// As Python's sorted(names, key=lambda name: (family(name), name)) puts them.
const IN_ORDER = [
  "clip",
  "clip/high",
  "clip/low",
  "clip-b/x",
  "kl/mean",
  "reward/mean",
];

test("metrics stand by family, then by name", () => {
  const sorted = [...IN_ORDER]
    .reverse()
    .sort((a, b) => (isBefore(a, b) ? -1 : isBefore(b, a) ? 1 : 0));

  assert.deepEqual(sorted, IN_ORDER);
});

test("however they come, the page shows them as a fresh one would", () => {
  const parent = {
    children: [],
    insertBefore(child, next) {
      const at = next ? this.children.indexOf(next) : this.children.length;
      this.children.splice(at, 0, child);
    },
  };

  for (const name of [
    "reward/mean",
    "clip/low",
    "kl/mean",
    "clip",
    "clip-b/x",
    "clip/high",
  ])
    insertInOrder(parent, { name }, ({ name }) => name);

  assert.deepEqual(
    parent.children.map(({ name }) => name),
    IN_ORDER,
  );
});
