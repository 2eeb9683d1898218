import assert from "node:assert/strict";
import { test } from "node:test";

import { Choice, makeRange, View } from "../../static/js/charts/view.js";
import { makeMatcher } from "../../static/js/charts/search.js";

test("an address goes before what is kept, and that before the default", () => {
  const view = new View({ kept: "smooth=0.9&x=time", address: "?x=tokens" });

  assert.deepEqual([view.smoothing, view.x, view.tails], [0.9, "tokens", true]);
});

test("what means nothing is read as the default", () => {
  const view = new View({ address: "smooth=2&x=moon&from=a&to=3" });

  assert.deepEqual([view.smoothing, view.x, view.range], [0.6, "step", null]);
});

test("a view's address makes the same view, whatever the reader keeps", () => {
  const view = new View({ address: "smooth=0.3&log=all,kl-mean&clip=lr&from=5&to=90" });

  const address = view.write("?q=kl", { isWhole: true });
  const other = new View({ kept: "smooth=0.9&tails=off&x=time", address });

  assert.deepEqual(other.settings(), view.settings());
  assert.deepEqual(other.range, { first: 5, last: 90 });
  assert.equal(new URLSearchParams(address).get("q"), "kl");
});

test("the address bar says what differs from the default", () => {
  assert.equal(new View().write(""), "");
  assert.equal(new View({ address: "x=time" }).write("x=time"), "x=time");
});

test("an address that says none says so against what the reader keeps", () => {
  const view = new View({ kept: "log=all", address: "log=&x=step" });

  assert.equal(view.write("log=&x=step"), "log=&x=step");
});

test("a range of steps is no setting to keep", () => {
  assert.ok(new View({ address: "from=5&to=90" }).isDefault);
});

test("resetting forgets all", () => {
  const view = new View({ address: "x=time&log=all&from=5&to=90" });

  view.reset();

  assert.ok(view.isDefault);
  assert.equal(view.write("x=time&log=all&from=5&to=90"), "x=step");
});

test("a choice for all charts has its exceptions", () => {
  const choice = new Choice("");
  choice.toggle("kl");
  assert.deepEqual(
    [choice.has("kl"), choice.has("lr"), `${choice}`],
    [true, false, "kl"],
  );

  choice.setAll(true);
  assert.equal(choice.has("kl"), true);
  choice.toggle("kl");
  assert.deepEqual([choice.has("kl"), choice.has("lr")], [false, true]);
  assert.equal(`${choice}`, "all,kl");
});

test("a range lies on whole steps and is never empty", () => {
  assert.deepEqual(makeRange(7.6, 3.2), { first: 3, last: 8 });
  assert.deepEqual(makeRange(-4, 0), { first: 0, last: 1 });
});

const NAMES = ["kl/mean", "kl/max", "eval/heldout/pass@1", "reward/mean"];

test("a search finds words in any order, or a regular expression", () => {
  const found = (text) => NAMES.filter(makeMatcher(text).matches);

  assert.deepEqual(found("mean KL"), ["kl/mean"]);
  assert.deepEqual(found("^(kl|reward)/mean$"), ["kl/mean", "reward/mean"]);
  assert.deepEqual(found(""), NAMES);
});

test("an expression that is not finished is read as words, and said to be", () => {
  const { matches, error } = makeMatcher("kl(");

  assert.equal(NAMES.some(matches), false);
  assert.match(error, /Incomplete regular expression/);
});
