import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";

import { compare, describe, isAlike } from "../../static/js/group/diff.js";

const diff = createRequire(import.meta.url)("diff");

const join = ({ pieces }, ...kinds) =>
  pieces
    .filter(({ kind }) => kinds.includes(kind))
    .map(({ text }) => text)
    .join("");

test("the served library is the tested one", () => {
  const served = readFileSync("node_modules/diff/dist/diff.min.js", "utf8");

  assert.match(served, /diffWordsWithSpace/);
});

test("the pieces make up both texts", () => {
  const base = "Use all numbers:\n3 * 4 = 12";
  const text = "Use both numbers:\n\n3 * 5 = 15";

  const found = compare(base, text, diff);

  assert.equal(join(found, "same", "removed"), base);
  assert.equal(join(found, "same", "added"), text);
});

test("added and removed words are counted", () => {
  const found = compare("the sum is 12 or so", "the sum is 15", diff);

  assert.equal(
    describe(found, "completion 2"),
    "Compared with completion 2: 1 word added, 3 words removed.",
  );
});

test("equal texts are reported", () => {
  assert.equal(
    describe(compare("a b", "a b", diff), "completion 1"),
    "Same text as completion 1.",
  );
});

test("differences in whitespace are reported", () => {
  assert.equal(
    describe(compare("a b", "a  b", diff), "completion 1"),
    "Differs from completion 1 only in whitespace.",
  );
});

test("texts with one common word are not merged", () => {
  const found = compare("one two three four five", "six seven three eight nine", diff);

  assert.equal(isAlike(found), false);
  assert.equal(
    describe(found, "completion 1"),
    "Shares 1 word of 5 with completion 1: too few to show differences.",
  );
});

test("the comparison of long texts times out", () => {
  const words = (seed) =>
    Array.from({ length: 30_000 }, (_, at) => (at * seed) % 7_919).join(" ");

  const found = compare(words(7), words(11), diff);

  assert.equal(found, null);
  assert.match(describe(found, "completion 1"), /Too long/);
});
