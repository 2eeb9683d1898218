import assert from "node:assert/strict";
import { test } from "node:test";

import { describeWarning, listWarnings } from "../../static/js/live/warnings.js";

function warned(step, code, value = null, threshold = null) {
  return {
    type: "warned",
    step,
    body: { code, message: `It is ${code}.`, value, threshold },
  };
}

test("each kind of warning is listed once, the newest first", () => {
  const events = [warned(1, "kl"), warned(2, "truncated"), warned(7, "kl")];

  const found = listWarnings(events, 10);

  assert.deepEqual(
    found.map(({ code, step, count }) => [code, step, count]),
    [
      ["kl", 7, 2],
      ["truncated", 2, 1],
    ],
  );
});

test("other events are no warnings", () => {
  const saved = { type: "checkpoint_saved", step: 1, body: {} };

  assert.deepEqual(listWarnings([saved], 10), []);
});

test("a warning past the checkpoint that a run resumed from is not listed", () => {
  assert.deepEqual(listWarnings([warned(9, "kl")], 5), []);
});

test("a warning says where, what and by how much", () => {
  const [found] = listWarnings([warned(3, "kl", 25.5, 20), warned(8, "kl", 31, 20)], 8);

  const text = describeWarning(found);

  assert.equal(text, "Step 8: It is kl. (value 31, bound 20; 2 times)");
});

test("a warning without a step or a value is its sentence alone", () => {
  const [found] = listWarnings([warned(0, "unreadable_line")], 8);

  assert.equal(describeWarning(found), "It is unreadable_line.");
});
