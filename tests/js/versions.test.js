import assert from "node:assert/strict";
import { test } from "node:test";

import { noticeOf } from "../../static/js/live/versions.js";

test("an older page is asked to reload, and told what to do first", () => {
  assert.match(noticeOf("outdated"), /updated.*stays as it was.*Save.*reload the page/);
});

test("a newer page is told to wait", () => {
  assert.match(noticeOf("ahead"), /being updated.*older.*asks again by itself/);
});

test("the notice goes when frames come, and stays while one connects", () => {
  for (const link of ["live", "polling"]) assert.equal(noticeOf(link), "");
  for (const link of ["connecting", "catching-up", "offline"])
    assert.equal(noticeOf(link), undefined);
});
