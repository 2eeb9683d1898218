import assert from "node:assert/strict";
import { test } from "node:test";

import { noticeOf } from "../../static/js/live/versions.js";

test("a page of another version has a notice", () => {
  for (const link of ["outdated", "ahead"]) assert.ok(noticeOf(link));
});

test("frames remove the notice, and connecting keeps it", () => {
  for (const link of ["live", "polling"]) assert.equal(noticeOf(link), "");
  for (const link of ["connecting", "catching-up", "offline"])
    assert.equal(noticeOf(link), undefined);
});
