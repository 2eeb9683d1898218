import assert from "node:assert/strict";
import { test } from "node:test";

import {
  clockTime,
  interleave,
  lineId,
  withoutStamp,
} from "../../static/js/logs/merge.js";

const lines = (...times) => times.map((time, i) => ({ number: i + 1, time, text: "" }));
const ids = (merged) => merged.map(lineId);

test("worker lines are merged by time", () => {
  const main = { first: 0, isEnd: true, lines: lines(10, 20, 30) };
  const beside = { lines: lines(5, 15, 15.5, 40) };

  const merged = interleave(main, beside);

  assert.deepEqual(ids(merged), ["W1", "L1", "W2", "W3", "L2", "L3", "W4"]);
});

test("only worker lines of the page's range are shown", () => {
  const main = { first: 100, isEnd: false, lines: lines(10, 20) };
  const beside = { lines: lines(5, 10, 20, 25) };

  assert.deepEqual(ids(interleave(main, beside)), ["W2", "L1", "L2", "W3"].sort(order));

  function order(a, b) {
    const wanted = ["L1", "W2", "L2", "W3"];
    return wanted.indexOf(a) - wanted.indexOf(b);
  }
});

test("without trainer lines all worker lines are shown", () => {
  const main = { first: 0, isEnd: true, lines: [] };

  assert.deepEqual(ids(interleave(main, { lines: lines(1, null, 2) })), [
    "W1",
    "W2",
    "W3",
  ]);
});

test("lines of a message stay together", () => {
  const main = { first: 0, isEnd: true, lines: lines(10, null, 30) };
  const beside = { lines: lines(20, null) };

  assert.deepEqual(ids(interleave(main, beside)), ["L1", "L2", "W1", "W2", "L3"]);
});

test("a worker line has one timestamp and keeps its matches", () => {
  const line = { isWorker: true, text: "2026-01-02 03:04:05.678 Started it." };

  assert.deepEqual(withoutStamp(line, [[24, 31]]), {
    text: "Started it.",
    spans: [[0, 7]],
  });
  assert.deepEqual(withoutStamp(line, [[0, 4]]).spans, []);
  const old = { isWorker: true, text: "2026-01-02 03:04:05 Started it." };
  assert.equal(withoutStamp(old, []).text, "Started it.");
  const own = { text: "2026-01-02 03:04:05.678 printed by a trainer" };
  assert.equal(withoutStamp(own, []).text, own.text);
});

test("times are UTC", () => {
  assert.equal(clockTime(Date.UTC(2026, 0, 2, 23, 4, 5) / 1000), "23:04:05");
});
