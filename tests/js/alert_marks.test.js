// Where alerts fired, as charts mark it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { markAlerts, newest, groupAlerts } from "../../static/js/charts/alert_marks.js";
import { fillFigure } from "../../static/js/charts/figure.js";
import { View } from "../../static/js/charts/view.js";
import { RunStore } from "../../static/js/live/store.js";

const read = (name) => name;
const axis = { position: (step) => 10 * step };

function fire(id, step, more = {}) {
  return {
    id,
    step,
    name: "KL is high",
    metric: "kl/mean",
    state: "firing",
    is_muted: false,
    url: `/alpha/alerts/${id}/`,
    ...more,
  };
}

function steps(places) {
  return places.map((alerts) => alerts.map(({ step }) => step));
}

test("a chart marks the alerts of its metrics, by rising step", () => {
  const alerts = [fire(3, 9), fire(2, 5, { metric: "loss" }), fire(1, 4)];

  const places = groupAlerts(alerts, ["kl/mean", "kl/max"], { last: 10 });

  assert.deepEqual(steps(places), [[4], [9]]);
});

test("what lies outside the zoom, or past where a resume went back to, is no mark", () => {
  const alerts = [fire(1, 2), fire(2, 5), fire(3, 8), fire(4, 12)];
  const range = { first: 4, last: 20 };

  assert.deepEqual(steps(groupAlerts(alerts, ["kl/mean"], { range, last: 10 })), [
    [5],
    [8],
  ]);
  assert.deepEqual(steps(groupAlerts(alerts, ["kl/mean"], { last: 4 })), [[2]]);
});

test("many alerts share marks, which stay where they are while a run grows", () => {
  const alerts = Array.from({ length: 50 }, (_, i) => fire(i, 20 * i));

  const before = groupAlerts(alerts, ["kl/mean"], { last: 1_100 });
  const after = groupAlerts(alerts, ["kl/mean"], { last: 1_200 });

  assert.ok(before.length <= 41);
  assert.equal(before.flat().length, 50);
  assert.deepEqual(steps(before), steps(after));
});

test("a mark is a line with a text that says what fired and leads to it", () => {
  const { shapes, annotations } = markAlerts(
    [[fire(1, 4), fire(2, 4, { name: "a <b> & c", state: "resolved" })], [fire(3, 9)]],
    axis,
    read,
  );

  assert.deepEqual(
    shapes.map(({ x0, x1 }) => [x0, x1]),
    [
      [40, 40],
      [90, 90],
    ],
  );
  assert.equal(annotations[0].text, "! 2");
  assert.equal(
    annotations[0].hovertext,
    "KL is high, step 4: firing<br>a &lt;b> &amp; c, step 4: resolved",
  );
  assert.equal(annotations[0].name, "/alpha/alerts/2/");
  assert.equal(annotations[1].text, "!");
});

test("what is looked after, over or muted is quiet", () => {
  const color = (more) =>
    markAlerts([[fire(1, 4, more)]], axis, read).shapes[0].line.color;

  assert.equal(color({}), "--cohort-warning");
  for (const more of [
    { state: "acknowledged" },
    { state: "resolved" },
    { is_muted: true },
  ])
    assert.equal(color(more), "--cohort-quiet");
});

test("a mark stands on neither the axis nor what lies past its end", () => {
  const marked = (options) =>
    markAlerts([[fire(1, 2)], [fire(2, 100)]], axis, read, options).annotations;

  assert.deepEqual(
    marked({ last: 100 }).map(({ xanchor }) => xanchor),
    ["left", "right"],
  );
});

test("of several the newest leads on", () => {
  assert.equal(newest([fire(1, 4), fire(7, 3), fire(2, 9)]).id, 7);
});

test("marks lie beside the lines of phases, and are left out where no one wants them", () => {
  const store = new RunStore();
  const phase = (first, name) => ({
    type: "phase_started",
    body: { first_step: first, name },
  });
  store.apply({
    type: "batch",
    run: { last_step: 3 },
    steps: [1, 2, 3].map((step) => ({ step, time: step, values: { "kl/mean": step } })),
    evaluations: [],
    events: [phase(1, "warm"), phase(3, "cold")],
  });
  const trace = { name: "kl/mean", line: {}, meta: { terms: [["kl/mean", 1]] } };
  const figure = { data: [trace], layout: { xaxis: {}, yaxis: { title: {} } } };
  const fill = (address) =>
    fillFigure(figure, {
      store,
      view: new View({ address }),
      read,
      revision: 1,
      id: "kl-mean",
      alerts: [fire(1, 2)],
    });

  const on = fill("smooth=0");
  assert.deepEqual(
    on.layout.shapes.map(({ x0 }) => x0),
    [2.5, 2],
  );
  assert.deepEqual(
    on.layout.annotations.map(({ text }) => text),
    ["warm", "cold", "!"],
  );
  assert.deepEqual(
    on.alerts.map(({ id }) => id),
    [1],
  );
  const off = fill("smooth=0&alerts=off");
  assert.equal(off.layout.shapes.length, 1);
  assert.deepEqual(off.alerts, []);
});
