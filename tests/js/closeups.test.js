import assert from "node:assert/strict";
import { test } from "node:test";

import { Closeups } from "../../static/js/charts/closeups.js";
import { openWindow } from "../../static/js/charts/window.js";
import { RunStore } from "../../static/js/live/store.js";
import { thin } from "../../static/js/live/thinning.js";

const all = Array.from({ length: 100_000 }, (_, i) => i + 1);
const whole = { steps: all, values: all.map((step) => step % 100) };

function open({ others = {}, answer } = {}) {
  const store = new RunStore();
  const thinned = thin(whole, 512);
  store.apply({
    type: "snapshot",
    attempt: 1,
    run: { last_step: 100_000 },
    steps: [],
    evaluations: [],
    events: [],
    curves: {
      clock: { steps: [...thinned.steps], times: [...thinned.steps] },
      names: { loss: thinned },
      width: 512,
      others,
      tails: [],
    },
  });
  const asked = [];
  const timers = [];
  const troubles = [];
  let isFound = false;
  const env = {
    now: () => 0,
    setTimeout: (task) => timers.push(task),
    fetch: async (url, { signal } = {}) => {
      const query = new URL(url, "http://x").searchParams;
      asked.push({ query, signal });
      return answer?.(query) ?? respond(query);
    },
  };
  const closeups = new Closeups({
    url: "/curves.json",
    store,
    env,
    onFound: () => {
      isFound = true;
    },
    onTrouble: (message) => troubles.push(message),
  });
  const settle = async () => {
    while (timers.length) timers.shift()();
    await new Promise((done) => setImmediate(done));
  };
  return { store, closeups, asked, troubles, settle, wasFound: () => isFound };
}

function respond(query, attempt = 1) {
  const [first, last] = [query.get("first_step") ?? 1, query.get("last_step") ?? 1e9];
  const steps = all.filter((step) => step >= first && step <= last);
  const curve = { steps, values: steps.map((step) => step % 100) };
  const names = query.get("metrics").split(",");
  const curves = Object.fromEntries(names.map((name) => [name, curve]));
  const body = { curves, tails: [], width: 1, attempt, through: 100_000 };
  return { ok: true, json: async () => body };
}

const NEAR = { first: 40_000, last: 40_200 };

test("a zoom asks once for finer points and shows what it has until they are here", async () => {
  const page = open();

  page.closeups.need(["loss"], NEAR);
  page.closeups.need(["loss"], NEAR);
  assert.equal(page.closeups.curve("loss", NEAR), page.store.get("loss"));
  await page.settle();

  assert.equal(page.asked.length, 1);
  const { steps } = page.closeups.curve("loss", NEAR);
  assert.ok(
    NEAR.first > steps[0] && all.slice(39_999, 40_200).every((s) => steps.includes(s)),
  );
  assert.ok(page.wasFound());
});

test("what is fine enough is not asked for again", async () => {
  const page = open();
  page.closeups.need(["loss"], NEAR);
  await page.settle();

  page.closeups.need(["loss"], { first: 40_050, last: 40_150 });
  page.closeups.need(["loss"], { first: 0, last: 100_000 });
  await page.settle();

  assert.equal(page.asked.length, 1);
});

test("an answer for a range that is no longer looked at is broken off", async () => {
  const page = open({ answer: () => new Promise(() => {}) });
  page.closeups.need(["loss"], NEAR);
  await page.settle();

  page.closeups.need(["loss"], { first: 90_000, last: 90_100 });

  assert.equal(page.asked[0].signal.aborted, true);
});

test("live points go on behind a closer look", async () => {
  const page = open();
  const end = { first: 99_900, last: 100_050 };
  page.closeups.need(["loss"], end);
  await page.settle();

  page.store.apply({
    type: "batch",
    attempt: 1,
    run: { last_step: 100_001 },
    steps: [{ step: 100_001, time: 1, values: { loss: 7 } }],
    evaluations: [],
    events: [],
  });

  const { steps, values } = page.closeups.curve("loss", end);
  assert.deepEqual([steps.at(-1), values.at(-1), steps.at(-2)], [100_001, 7, 100_000]);
});

test("a metric that the snapshot left out is asked for when it is looked at", async () => {
  const page = open({ others: { kl: [0, 1, 1], far: [0, 1, 1] } });
  assert.equal(page.closeups.curve("kl", null), undefined);

  page.closeups.need(["kl", "loss"], null);
  await page.settle();

  assert.deepEqual(
    page.asked.map(({ query }) => query.get("metrics")),
    ["kl"],
  );
  assert.equal(page.store.get("kl").steps.length, 100_000);
});

test("an answer of another history is thrown away", async () => {
  const page = open({ answer: (query) => respond(query, 2) });

  page.closeups.need(["loss"], NEAR);
  await page.settle();

  assert.equal(page.closeups.curve("loss", NEAR), page.store.get("loss"));
});

test("a question that fails is reported and asked again later", async () => {
  const page = open({ answer: () => ({ ok: false, status: 502 }) });

  page.closeups.need(["loss"], NEAR);
  await page.settle();
  page.closeups.need(["loss"], NEAR);
  await page.settle();

  assert.equal(page.troubles[0], "HTTP 502");
  assert.equal(page.asked.length, 2);
  assert.ok(page.wasFound()); // drawn again, and so asked, whatever the run does
});

test("a range of 1,000 steps is drawn step by step, and smoothed from before it", async () => {
  const page = open();
  const range = { first: 50_000, last: 50_990 };
  page.closeups.need(["loss"], range);
  await page.settle();

  const { steps } = openWindow({ ...page, range })("loss");

  const seen = steps.filter((step) => step >= range.first && step <= range.last);
  assert.equal(seen.length, 991);
  assert.ok(steps[0] < range.first);
});

test("a file has every step, read in parts that come whole", async () => {
  const { store, closeups, asked } = open({ others: { kl: [0, 99, 0] } });

  const found = await closeups.readAll(["loss", "kl", "no/such"], {
    first: 0,
    last: Number.POSITIVE_INFINITY,
  });

  assert.deepEqual([...found.keys()], ["loss", "kl"]);
  assert.equal(found.get("loss").steps.length, 100_000);
  assert.deepEqual(found.get("loss"), whole);
  assert.deepEqual(found.get("kl"), whole);
  assert.equal(asked.length, 10);
  assert.ok(asked.every(({ query }) => query.get("max_points") === "10000"));
  assert.ok(store.get("loss").steps.length <= 1_000); // what is drawn stays
});

test("an incomplete download fails", async () => {
  const whereTo = { first: 1, last: 20_000 };
  const failing = open({ answer: () => ({ ok: false, status: 503 }) });
  const other = open({ answer: (query) => respond(query, 2) });

  await assert.rejects(failing.closeups.readAll(["loss"], whereTo), /503/);
  await assert.rejects(other.closeups.readAll(["loss"], whereTo), /checkpoint/);
});
