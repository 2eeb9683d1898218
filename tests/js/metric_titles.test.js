import assert from "node:assert/strict";
import { test } from "node:test";

// As pages carry it: name, title, group.
const ROWS = [
  ["reward/mean", "Reward (mean)", "Reward"],
  ["reward/<rule>/mean", "Score of <rule>", "Reward"],
  ["reward/overlong/mean", "Length penalty", "Reward"],
  ["kl/mean", "KL to reference (nats per token)", "Policy"],
  ["eval/<set>/pass@<k>", "Held-out pass@<k>", "Held-out prompts"],
];
globalThis.document = { getElementById: () => ({ textContent: JSON.stringify(ROWS) }) };
const { compareMetrics, groupOf, insertInOrder, titleOf } = await import(
  "../../static/js/live/metric_titles.js"
);

// As Python's sorted(names, key=rank_of) puts them.
const IN_ORDER = [
  "reward/mean",
  "reward/answer/mean",
  "reward/format/mean",
  "kl/mean",
  "eval/heldout/pass@8",
  "speed",
  "clip-b/x",
];

test("a metric has its title, and one that is unknown its name", () => {
  assert.equal(titleOf("kl/mean"), "KL to reference (nats per token)");
  assert.equal(titleOf("reward/format/mean"), "Score of format");
  assert.equal(titleOf("reward/overlong/mean"), "Length penalty");
  assert.equal(titleOf("eval/heldout/pass@8"), "Held-out pass@8");
  assert.equal(titleOf("eval/math/pass@8"), "math: pass@8");
  assert.equal(titleOf("actor/my_loss"), "actor/my_loss");
});

test("a metric outside the registry is grouped by its family", () => {
  assert.equal(groupOf("actor/my_loss"), "actor");
  assert.equal(groupOf("speed"), "Other metrics");
});

test("metrics are sorted as the registry has them, then by name", () => {
  assert.deepEqual(IN_ORDER.toReversed().sort(compareMetrics), IN_ORDER);
});

test("metrics that arrive in any order end up sorted", () => {
  const parent = {
    children: [],
    insertBefore(child, next) {
      const at = next ? this.children.indexOf(next) : this.children.length;
      this.children.splice(at, 0, child);
    },
  };

  for (const name of IN_ORDER.toReversed())
    insertInOrder(parent, { name }, (child) => child.name, compareMetrics);

  assert.deepEqual(
    parent.children.map(({ name }) => name),
    IN_ORDER,
  );
});
