import assert from "node:assert/strict";
import { test } from "node:test";

import { findUnused, isSame, showText } from "../../static/js/launch/settings.js";

test("two ways to write a number are the same, but empty is not 0", () => {
  assert.ok(isSame("number", "1e-6", "0.000001"));
  assert.ok(!isSame("number", "", "0"));
  assert.ok(!isSame("text", "1.0", "1"));
});

test("a switch is on or off, and nothing is empty", () => {
  assert.deepEqual(
    [showText("switch", "on"), showText("switch", ""), showText("text", "")],
    ["on", "off", "empty"],
  );
});

const table = [
  { path: "a", when: { c: ["0"] }, reason: "c is 0" },
  { path: "b", when: { c: ["0"] }, reason: "c is 0" },
  { path: "a", when: { d: ["x", "y"], e: [""] }, reason: "d and e" },
];
const idle = (texts) =>
  Object.fromEntries(findUnused(table, new Map(Object.entries(texts))));

test("a setting is idle when every condition of a row holds", () => {
  assert.deepEqual(idle({ c: "0.0", d: "x", e: "1" }), { a: "c is 0", b: "c is 0" });
  assert.deepEqual(idle({ c: "1", d: "y", e: "" }), { a: "d and e" });
  assert.deepEqual(idle({ c: "", d: "y", e: "z" }), {});
});

test("the first reason counts", () => {
  assert.equal(idle({ c: "0", d: "x", e: "" }).a, "c is 0");
});
