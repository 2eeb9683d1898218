// What the run list's search offers while someone types.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  choose,
  offerKeys,
  offerValues,
  read,
} from "../../static/js/runs/completion.js";

const KNOWN = {
  keys: [
    { key: "state", about: "" },
    { key: "tag", about: "" },
    { key: "starred", about: "" },
  ],
  metrics: [
    { metric: "reward/mean", stats: ["last", "best"] },
    { metric: "odd metric", stats: ["last"] },
  ],
  settings: [{ key: "config.optim.learning_rate" }],
};

const at = (text, caret = text.length) => read(text, caret);
const texts = (offered) => offered.map(({ text }) => text);

test("a word that is begun is a key", () => {
  assert.deepEqual(at("state:running ta"), {
    kind: "key",
    key: "",
    typed: "ta",
    start: 14,
    end: 16,
  });
});

test("signs before a key are no part of it", () => {
  assert.deepEqual([at("-(st").typed, at("-(st").start], ["st", 2]);
  assert.deepEqual([at("(sta").typed, at("(sta").start], ["sta", 1]);
});

test("behind an operator stands a value, spaces or not", () => {
  for (const text of ["state:ru", "state = ru", "state  !=ru", "tag:a state:ru"]) {
    const place = at(text);
    assert.equal(place.kind, "value", text);
    assert.equal(place.key, "state", text);
    assert.equal(text.slice(place.start, place.end), "ru", text);
  }
});

test("of several values the last is typed", () => {
  assert.equal(at("state:queued,ru").typed, "ru");
  assert.equal(at("state:queued,").typed, "");
});

test("the caret decides what is typed, not the end of the text", () => {
  const place = at("sta reward/mean.last > 0.5", 3);
  assert.deepEqual([place.kind, place.typed, place.end], ["key", "sta", 3]);
});

test("within quotes a space ends nothing", () => {
  const place = at('tag:"long r');
  assert.deepEqual([place.kind, place.typed], ["value", "long r"]);
});

test("keys that begin so come before those that hold it", () => {
  assert.deepEqual(texts(offerKeys(KNOWN, "ta")), ["tag", "state", "starred"]);
  assert.deepEqual(texts(offerKeys(KNOWN, "learn")), ["config.optim.learning_rate"]);
  assert.deepEqual(texts(offerKeys(KNOWN, "REWARD")), [
    "reward/mean.last",
    "reward/mean.best",
  ]);
});

test("a metric with a space in its name is offered in quotes", () => {
  assert.deepEqual(texts(offerKeys(KNOWN, "odd")), ['"odd metric".last']);
});

test("values are offered as a query writes them", () => {
  assert.deepEqual(texts(offerValues(['"long run"', "baseline"], "long")), [
    '"long run"',
  ]);
});

test("a chosen key is followed by an operator or its place", () => {
  const flags = ["starred"];
  const chosen = (text, one, caret = text.length) =>
    choose(text, read(text, caret), one, flags);
  assert.deepEqual(chosen("st", "state"), { text: "state:", caret: 6 });
  assert.deepEqual(chosen("st", "starred"), { text: "starred ", caret: 8 });
  assert.deepEqual(chosen("rew", "reward/mean.last"), {
    text: "reward/mean.last ",
    caret: 17,
  });
  assert.deepEqual(chosen("state:ru tag:x", "running", 8), {
    text: "state:running tag:x",
    caret: 14,
  });
});
