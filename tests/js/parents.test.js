// A fork's parent in its charts.

import assert from "node:assert/strict";
import { test } from "node:test";

import { fillFigure } from "../../static/js/charts/figure.js";
import { drawParents, Parents, placeParents } from "../../static/js/charts/parents.js";
import { RunStore } from "../../static/js/live/store.js";

const line = (metric, more = {}) => ({
  name: metric,
  line: { width: 2 },
  meta: { terms: [[metric, 1]], smooth: false },
  ...more,
});
const ANCESTORS = [
  { name: "otter <b>", step: 20, curves: "/alpha/runs/1/curves.json" },
];
const read = (name) => name;

function serve(answers) {
  const asked = [];
  const fetch = async (address) => {
    asked.push(address);
    return {
      ok: answers !== null,
      status: answers ? 200 : 404,
      json: async () => answers,
    };
  };
  return { asked, env: { fetch } };
}

const CURVES = {
  curves: { loss: { steps: [1, 20], values: [3, 2] }, kl: { steps: [], values: [] } },
  clock: {},
};

test("each metric is asked for once, up to the step of the fork", async () => {
  const { asked, env } = serve(CURVES);
  let drawn = 0;
  const parents = new Parents({ ancestors: ANCESTORS, env, onLoaded: () => drawn++ });

  await parents.load(["loss"]);
  await parents.load(["loss"]);
  await parents.load(["loss", "kl"]);

  assert.deepEqual(asked, [
    "/alpha/runs/1/curves.json?metrics=loss%2Ctotal%2Ftokens%2Ctotal%2Fcompletions&last_step=20",
    "/alpha/runs/1/curves.json?metrics=kl&last_step=20",
  ]);
  assert.equal(drawn, 2);
  assert.equal(parents.lines.length, 1);
});

test("a run that is no fork asks for nothing", async () => {
  const { asked, env } = serve(CURVES);

  await new Parents({ ancestors: [], env, onLoaded: () => {} }).load(["loss"]);

  assert.deepEqual(asked, []);
});

test("plain lines go on from the parent's, in grey and named", async () => {
  const parents = new Parents({
    ancestors: ANCESTORS,
    env: serve(CURVES).env,
    onLoaded: () => {},
  });
  await parents.load(["loss", "kl"]);
  const stacked = line("loss", { stackgroup: "one" });

  const view = { x: "step", smoothing: 0 };
  const placed = placeParents(parents, { view, store: new RunStore(), last: 0 });
  const drawn = drawParents([line("loss"), line("kl"), stacked], {
    placed,
    view,
    read,
  });

  assert.equal(drawn.length, 1);
  assert.deepEqual(
    [drawn[0].x, drawn[0].y],
    [
      [1, 20],
      [3, 2],
    ],
  );
  assert.equal(drawn[0].line.color, "--cohort-quiet");
  assert.equal(drawn[0].name, "otter &lt;b>, to step 20");
});

// A parent of 20 steps of 10 s and 100 tokens; a fork with steps of 5 s and 300.
const STEPS = Array.from({ length: 20 }, (_, i) => i + 1);
const PARENT = {
  curves: {
    loss: { steps: STEPS, values: STEPS.map((n) => 40 - n) },
    "total/tokens": { steps: STEPS, values: STEPS.map((n) => 100 * n) },
  },
  clock: { steps: STEPS, times: STEPS.map((n) => 1_000 + 10 * n) },
};

async function fork({ seconds, answer = PARENT }) {
  const store = new RunStore();
  const steps = [21, 22, 23];
  const values = { loss: [19, 18, 17], "total/tokens": [2_300, 2_600, 2_900] };
  const names = Object.fromEntries(
    Object.entries(values).map(([name, own]) => [name, { steps, values: own }]),
  );
  store.apply({
    type: "snapshot",
    attempt: 1,
    run: { last_step: 23, fork: { run: 1, step: 20, seconds } },
    steps: [],
    evaluations: [],
    events: [],
    curves: {
      clock: { steps, times: [90_005, 90_010, 90_015] },
      names,
      width: 1,
      others: {},
      tails: [],
    },
  });
  const ancestors = [{ ...ANCESTORS[0], fork: null }];
  const { env } = serve(answer);
  const parents = new Parents({ ancestors, env, onLoaded: () => {} });
  await parents.load(["loss"]);
  return { store, parents };
}

function fill({ store, parents }, x) {
  const figure = { data: [line("loss")], layout: { xaxis: {}, yaxis: {} } };
  const view = { x, smoothing: 0 };
  return fillFigure(figure, { store, parents, view, read, id: "loss", revision: 0 });
}

test("on each axis a fork goes on where its parent's curve ends", async () => {
  const story = await fork({ seconds: 190 });

  for (const [x, end, first] of [
    ["step", 20, 21],
    ["tokens", 2_000, 2_300],
    ["time", 190, 195],
  ]) {
    const { data, axis } = fill(story, x);
    const [parent, own] = ["isParent", undefined].map((flag) =>
      data.find(({ meta }) => Boolean(meta.isParent) === Boolean(flag)),
    );
    const unit = x === "time" ? axis.stepAt && axis.position(20) / 190 : 1;
    assert.ok(
      Math.abs(parent.x.at(-1) / unit - end) < 1e-6,
      `${x}: ${parent.x.at(-1)}`,
    );
    assert.ok(Math.abs(own.x[0] / unit - first) < 1e-6, `${x}: ${own.x[0]}`);
    // A range that is dragged over the parent's part means its steps.
    assert.ok(Math.abs(axis.stepAt(parent.x[4]) - 5) < 1e-6);
  }
});

test("a fork whose parent's time was not counted has its own", async () => {
  const story = await fork({ seconds: null });

  const { data } = fill(story, "time");

  assert.equal(data.length, 1);
  assert.equal(data[0].x[0], 0);
});

test("a parent that was not counted is left out of a counted axis", async () => {
  const { loss } = PARENT.curves;
  const story = await fork({ seconds: 190, answer: { ...PARENT, curves: { loss } } });

  assert.equal(fill(story, "tokens").data.length, 1);
});

test("what cannot be had is not drawn", async () => {
  const { env } = serve(null);
  const parents = new Parents({ ancestors: ANCESTORS, env, onLoaded: () => {} });

  await parents.load(["loss"]);

  assert.deepEqual(parents.lines, []);
});

test("while the server is away it is asked again, later", async () => {
  const answers = [
    null,
    { ok: false, status: 502 },
    { ok: true, json: async () => CURVES },
  ];
  const asked = [];
  const timers = [];
  let drawn = 0;
  const parents = new Parents({
    ancestors: ANCESTORS,
    env: {
      fetch: async (address) => {
        asked.push(address);
        const answer = answers.shift();
        if (!answer) throw new TypeError("Failed to fetch");
        return answer;
      },
      setTimeout: (task) => timers.push(task),
    },
    onLoaded: () => drawn++,
  });

  for (const times of [1, 2, 3]) {
    await parents.load(["loss"]);
    await parents.load(["loss"]); // drawn meanwhile
    assert.equal(asked.length, times);
    timers.shift()?.();
  }

  assert.equal(parents.lines.length, 1);
  assert.equal(timers.length, 0);
  assert.equal(drawn, 5);
});
