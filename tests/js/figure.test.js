import assert from "node:assert/strict";
import { test } from "node:test";

import { asCsv } from "../../static/js/charts/download.js";
import { fillFigure, hasPoints } from "../../static/js/charts/figure.js";
import { withAlpha } from "../../static/js/charts/theme.js";
import { RunStore } from "../../static/js/live/store.js";

const read = (name) => ({ "--cohort-series-1": "#0b62c4" })[name] ?? "#123456";
const layout = {
  title: { text: "loss" },
  xaxis: {},
  yaxis: { title: { text: "loss" } },
};
const line = {
  type: "scatter",
  name: "loss",
  line: { width: 2, color: "var(--cohort-series-1)" },
  meta: { terms: [["loss", 1]], smooth: true },
};

function fill(traces, { smoothing = 0, x = "step" } = {}) {
  const store = new RunStore();
  const rows = [1, 2, 3].map((step) => ({
    step,
    time: 1000 + 300 * step,
    values: { loss: step, "eval/b": 1, "eval/a": 2 },
  }));
  const run = { last_step: rows.at(-1).step };
  store.apply({ type: "batch", run, steps: rows, evaluations: [], events: [] });
  const view = { smoothing, x };
  return fillFigure({ data: traces, layout }, { store, view, read, revision: 4 });
}

test("colours of the theme take the place of variables", () => {
  const { data } = fill([line]);

  assert.equal(data[0].line.color, "#0b62c4");
  assert.deepEqual(data[0].y, [1, 2, 3]);
});

test("a smoothed line has its raw one behind it, out of legend and hover", () => {
  const { data } = fill([line], { smoothing: 0.5 });

  assert.equal(data.length, 2);
  assert.deepEqual(data[0].y, [1, 2, 3]);
  assert.equal(data[0].showlegend, false);
  assert.notDeepEqual(data[1].y, [1, 2, 3]);
});

test("over time the points lie where their steps ended", () => {
  const { data, layout: drawn } = fill([line], { x: "time" });

  assert.deepEqual(data[0].x, [0, 5, 10]);
  assert.equal(drawn.xaxis.title.text, "minutes since the first step");
});

test("zoom is kept while values arrive and given up with the axis", () => {
  assert.equal(fill([line]).layout.uirevision, fill([line]).layout.uirevision);
  assert.notEqual(
    fill([line]).layout.uirevision,
    fill([line], { x: "time" }).layout.uirevision,
  );
});

test("a family of metrics becomes one line each", () => {
  const each = { type: "scatter", line: {}, meta: { each: "^eval/", smooth: false } };

  const { data } = fill([each]);

  assert.deepEqual(
    data.map((trace) => trace.name),
    ["eval/a", "eval/b"],
  );
});

test("a chart whose metrics are not there has no points", () => {
  assert.equal(
    hasPoints(fill([{ ...line, meta: { terms: [["kl", 1]] } }]).data),
    false,
  );
  assert.equal(hasPoints(fill([line]).data), true);
});

test("a colour is made transparent", () => {
  assert.equal(withAlpha("#0b62c4", 0.2), "rgba(11, 98, 196, 0.2)");
  assert.equal(withAlpha("#fff", 1), "rgba(255, 255, 255, 1)");
});

test("a chart's CSV has a row a step and leaves raw lines out", () => {
  const { data } = fill([line, { ...line, name: 'a "b", c' }], { smoothing: 0.5 });

  const rows = asCsv(data).trim().split("\n");

  assert.equal(rows[0], 'step,loss,"a ""b"", c"');
  assert.equal(rows.length, 4);
  assert.equal(rows[1], "1,1,1");
});

test("no cell of a file is a formula, and names are as they were", () => {
  const named = (name, y) => ({ name, y: [y], customdata: [1] });
  const csv = asCsv([
    named("=HYPERLINK(1)", -1),
    named("a &lt;b&gt; &amp;lt;", 2),
    named("@x", 3),
    named("+1\r", 4),
  ]);

  assert.equal(csv.split("\n")[0], "step,'=HYPERLINK(1),a <b> &lt;,'@x,\"'+1\r\"");
  assert.equal(csv.split("\n")[1], "1,-1,2,3,4");
});

test("a metric's name is no markup", () => {
  const each = { ...line, name: undefined, meta: { each: "^eval/" } };
  const store = new RunStore();
  const values = { "eval/<a href='https://evil.example'>": 1 };
  const rows = [{ step: 1, time: 1, values }];
  const run = { last_step: 1 };
  store.apply({ type: "batch", run, steps: rows, evaluations: [], events: [] });
  const view = { smoothing: 0, x: "step" };

  const { data } = fillFigure(
    { data: [each], layout },
    { store, view, read, revision: 1 },
  );

  assert.equal(data[0].name, "eval/&lt;a href='https://evil.example'>");
});

function fillEvaluations(metrics, events = []) {
  const store = new RunStore();
  const rows = [1, 2].map((step) => ({ step, time: 100 * step, values: { loss: 1 } }));
  const evaluations = [{ step: 1, metrics }];
  const run = { last_step: 2 };
  store.apply({ type: "batch", run, steps: rows, evaluations, events });
  const each = { meta: { each: "^eval/[^/]+/mean$", band: true }, name: "eval" };
  const view = { smoothing: 0.9, x: "step" };
  return fillFigure({ data: [each], layout }, { store, view, read, revision: 1 });
}

test("an interval is a band around its line, not lines of its own", () => {
  const { data } = fillEvaluations({
    "eval/a/mean": 0.5,
    "eval/a/mean/low": 0.4,
    "eval/a/mean/high": 0.6,
  });

  assert.deepEqual(
    data.map(({ name, y }) => [name, y]),
    [
      ["eval/a/mean/low", [0.4]],
      ["eval/a/mean/high", [0.6]],
      ["eval/a/mean", [0.5]],
    ],
  );
  assert.equal(data[1].fill, "tonexty");
  assert.equal(data[1].fillcolor, "rgba(11, 98, 196, 0.14)");
  assert.ok(data.slice(0, 2).every(({ showlegend }) => showlegend === false));
});

test("a line without an interval has no band", () => {
  const { data } = fillEvaluations({ "eval/a/mean": 0.5, "eval/a/mean/low": 0.4 });

  assert.equal(data.length, 1);
});

test("each phase has its name where it begins, and a line but for the first", () => {
  const began = (first_step, name) => ({
    type: "phase_started",
    step: first_step,
    body: { name, first_step, last_step: first_step },
  });
  const { layout: drawn } = fillEvaluations({}, [
    began(1, "sft"),
    began(2, "a<b"),
    began(2, "a<b"), // said again after a resume
    began(9, "not yet again"),
  ]);

  assert.deepEqual(
    drawn.annotations.map(({ text, x }) => [text, x]),
    [
      ["sft", 0.5],
      ["a&lt;b", 1.5],
    ],
  );
  assert.deepEqual(
    drawn.shapes.map(({ x0, x1 }) => [x0, x1]),
    [[1.5, 1.5]],
  );
});

test("a run without phases has no marks", () => {
  const { layout: drawn } = fill([line]);

  assert.deepEqual([drawn.shapes, drawn.annotations], [[], []]);
});

test("among many lines only the mean keeps its band, and k counts up", () => {
  const metrics = {};
  for (const name of ["mean", "pass@16", "pass@2", "pass@1", "pass@4"])
    for (const end of ["", "/low", "/high"]) metrics[`eval/a/${name}${end}`] = 0.5;
  const store = new RunStore();
  store.apply({
    type: "batch",
    run: { last_step: 2 },
    steps: [],
    evaluations: [{ step: 1, metrics }],
    events: [],
  });
  const each = { meta: { each: "^eval/a/(mean|pass@\\d+)$", band: true }, name: "e" };
  const view = { smoothing: 0, x: "step" };
  const { data } = fillFigure(
    { data: [each], layout },
    { store, view, read, revision: 1 },
  );

  assert.deepEqual(
    data.map(({ name }) => name.replace("eval/a/", "")),
    ["mean/low", "mean/high", "mean", "pass@1", "pass@2", "pass@4", "pass@16"],
  );
});
