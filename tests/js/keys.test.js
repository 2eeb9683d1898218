import assert from "node:assert/strict";
import { test } from "node:test";
import { isPlain, moveIndex } from "../../static/js/keys.js";

test("from nowhere, forwards begins at the first and backwards at the last", () => {
  assert.equal(moveIndex(-1, 1, 3), 0);
  assert.equal(moveIndex(-1, -1, 3), 2);
});

test("the ends are not passed", () => {
  assert.equal(moveIndex(2, 1, 3), 2);
  assert.equal(moveIndex(0, -1, 3), 0);
});

test("nothing to move in gives no index", () => {
  assert.equal(moveIndex(-1, 1, 0), -1);
});

test("a key with a modifier, or one already handled, is left alone", () => {
  assert.ok(isPlain({ ctrlKey: false, metaKey: false, altKey: false }));
  assert.ok(!isPlain({ ctrlKey: true }));
  assert.ok(!isPlain({ defaultPrevented: true }));
});
