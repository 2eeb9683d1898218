import assert from "node:assert/strict";
import { test } from "node:test";

import { missingAxis } from "../../static/js/charts/axis.js";
import { asCsv } from "../../static/js/charts/download.js";
import { fillFigure, hasPoints, isFlat } from "../../static/js/charts/figure.js";
import { withAlpha } from "../../static/js/charts/theme.js";
import { View } from "../../static/js/charts/view.js";
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

function fill(traces, { smoothing = 0, x = "step", address = "", change } = {}) {
  const store = new RunStore();
  const rows = [1, 2, 3].map((step) => ({
    step,
    time: 1000 + 300 * step,
    values: {
      loss: step,
      "eval/b": 1,
      "eval/a": 2,
      "total/tokens": 100 * step * step,
    },
  }));
  const run = { last_step: rows.at(-1).step };
  store.apply({ type: "batch", run, steps: rows, evaluations: [], events: [] });
  const view = new View({ address: `smooth=${smoothing}&x=${x}&${address}` });
  change?.(store);
  const id = "loss";
  return fillFigure({ data: traces, layout }, { store, view, read, revision: 4, id });
}

test("colours of the theme take the place of variables", () => {
  const { data } = fill([line]);

  assert.equal(data[0].line.color, "#0b62c4");
  assert.deepEqual(data[0].y, [1, 2, 3]);
});

test("a few points of a line are marked, of a stack one", () => {
  const add = (count) => (store) => {
    const steps = Array.from({ length: count }, (_, i) => ({
      step: 4 + i,
      time: 3000 + i,
      values: { loss: 1 },
    }));
    const run = { last_step: 3 + count };
    store.apply({ type: "batch", run, steps, evaluations: [], events: [] });
  };
  const modeOf = (trace, change) => fill([trace], { change }).data[0].mode;
  const drawn = { ...line, mode: "lines" };

  assert.equal(modeOf(drawn, add(16)), "lines+markers"); // 19 points
  assert.equal(modeOf(drawn, add(17)), "lines");
  assert.equal(modeOf({ ...drawn, stackgroup: "one" }), "lines"); // of 3
  assert.equal(modeOf({ ...drawn, line: { width: 0 } }), "lines"); // a band's edge
});

// 1, 2, 3 …
function lengthen(count) {
  return (store) => {
    const values = Array.from({ length: count }, (_, i) => i + 1);
    store.curves.set("loss", { steps: [...values], values });
  };
}

test("a smoothed line has its raw one behind it, out of legend and hover", () => {
  const { data } = fill([line], { smoothing: 0.5, change: lengthen(50) });

  assert.equal(data.length, 2);
  assert.deepEqual(data[0].y.slice(0, 3), [1, 2, 3]);
  assert.equal(data[0].showlegend, false);
  assert.notDeepEqual(data[1].y, [1, 2, 3]);
});

test("hovering a smoothed line shows its own value, then the smoothed one", () => {
  const traces = [{ ...line, hovertemplate: "%{y:.4~g}" }];
  const hover = (smoothing) => fill(traces, { smoothing, change: lengthen(50) });

  const [smoothed, plain] = [hover(0.5).data.at(-1), hover(0).data.at(-1)];

  const [own, drawn] = smoothed.hovertemplate.split("<br>");
  assert.equal(own, "%{text:.4~g}");
  assert.deepEqual(smoothed.text.slice(0, 3), [1, 2, 3]);
  assert.match(drawn, /#123456.*%\{y:\.4~g\}/);
  assert.equal(plain.hovertemplate, "%{y:.4~g}");
});

test("layers have their own values on hover, and their legend above the plot", () => {
  const layer = { ...line, stackgroup: "one", hovertemplate: "%{y:.1%}" };
  const drawn = fill([layer], { smoothing: 0.5, change: lengthen(50) });

  assert.equal(drawn.data.at(-1).hovertemplate, "%{text:.1%}");
  assert.deepEqual(drawn.data.at(-1).text.slice(0, 3), [1, 2, 3]);
  assert.equal(drawn.layout.showlegend, false);
});

test("fewer than 50 points are not smoothed", () => {
  for (const [count, numLines] of [
    [49, 1],
    [50, 2],
  ]) {
    const { data } = fill([line], { smoothing: 0.5, change: lengthen(count) });

    assert.equal(data.length, numLines, count);
  }
});

test("the axis has all steps of the run, also those to come", () => {
  const change = (isLive) => (store) =>
    Object.assign(store, { isLive, numSteps: 10, lastStep: 7 });

  const live = fill([line], { change: change(true) }).layout.xaxis;
  const ended = fill([line], { change: change(false) }).layout.xaxis;
  const zoomed = fill([line], { change: change(true), address: "from=1&to=2" });

  assert.deepEqual(live.range, [0, 10]);
  assert.deepEqual(ended.range, [0, 7]);
  assert.deepEqual(zoomed.layout.xaxis.range, [1, 2]);
});

test("until a quarter is done, the axis has twice the steps so far", () => {
  for (const [lastStep, end] of [
    [0, 40],
    [3, 6],
    [10, 40],
  ]) {
    const change = (store) =>
      Object.assign(store, { isLive: true, numSteps: 40, lastStep });
    const { xaxis } = fill([line], { change }).layout;
    assert.deepEqual(xaxis.range, [0, end]);
    assert.equal(xaxis.dtick, end === 6 ? 1 : undefined);
  }
});

test("a metric that a run lacks is replaced by a sum within limits", () => {
  const meta = {
    terms: [["p90", 1]],
    otherwise: [
      ["loss", 1],
      ["loss", 1],
    ],
    limits: [0, 5],
  };
  const edge = { ...line, line: { width: 0 }, meta };
  const change = (store) => {
    store.curves.set("p90", { steps: [1, 2], values: [7, 8] });
    store.ranges.set("p90", { low: 7, high: 8, last: 8 });
  };

  assert.deepEqual(fill([edge]).data[0].y, [2, 4, 5]);
  assert.deepEqual(fill([edge], { change }).data[0].y, [7, 8]);
});

test("a chart is flat if all its values are nearly 0", () => {
  const store = new RunStore();
  const put = (name, low, high) => store.ranges.set(name, { low, high, last: low });
  put("zero", 0, 0);
  put("tiny", -9e-5, 9e-5);
  put("small", 0, 1e-4);
  put("down", -1, 0);
  put("lr", 1e-6, 1e-6);

  const isSo = (...names) => isFlat(names, store);

  assert.ok(isSo("zero") && isSo("tiny") && isSo("zero", "tiny", "unmeasured"));
  for (const names of [["small"], ["down"], ["zero", "down"], ["lr"], ["unmeasured"]])
    assert.equal(isSo(...names), false, names);
});

test("numbers that Plotly finds no range for are clipped, and that is reported", () => {
  const change = (store) => {
    store.curves.get("loss").values = [1.7e308, -1.7e308, 1];
  };

  for (const smoothing of [0, 0.5]) {
    const { data, notes, layout, hasBeyond } = fill([line], { smoothing, change });

    for (const { y } of data)
      assert.ok(y.every((value) => Math.abs(value) <= 1e37 && Number.isFinite(value)));
    assert.deepEqual(data.at(-1).meta.raw, [1.7e308, -1.7e308, 1]);
    assert.equal(notes.length, 1);
    assert.ok(hasBeyond);
    assert.equal(layout.yaxis.tickformat, undefined);
    assert.equal(layout.yaxis.autorange, true);
  }
  const sum = {
    ...line,
    meta: {
      terms: [
        ["loss", 1],
        ["loss", 1],
      ],
      smooth: false,
    },
  };
  assert.ok(fill([sum], { change }).data[0].y.every(Number.isFinite));
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

test("a line of a family has the name that is left, or the chart's", () => {
  const meta = { each: "^eval/", cut: "ev", end: "/b", smooth: false };
  const names = (more) =>
    fill([{ type: "scatter", line: {}, meta: { ...meta, ...more } }]).data.map(
      (trace) => trace.name,
    );

  assert.deepEqual(names({}), ["al/a", "al"]);
  assert.deepEqual(names({ each: "^eval/a$", name: "Held-out" }), ["Held-out"]);
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

test("a chart's CSV has a row a step, the values and what is drawn of them", () => {
  const traces = [line, { ...line, name: 'a "b", c' }];
  const { data } = fill(traces, { smoothing: 0.5, change: lengthen(50) });

  const rows = asCsv(data).trim().split("\n");

  assert.equal(
    rows[0],
    'step,loss,loss (smoothed 0.5),"a ""b"", c","a ""b"", c (smoothed 0.5)"',
  );
  assert.equal(rows.length, 51);
  assert.equal(rows[1], "1,1,1,1,1");
  // (0.5 · 0.5 · 1 + 0.5 · 2) / (1 - 0.5²) = 5/3
  assert.equal(rows[2], `2,2,${5 / 3},2,${5 / 3}`);
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

test("over tokens the points lie where so many were sampled", () => {
  const { data, layout: drawn } = fill([line], { x: "tokens" });

  assert.deepEqual(data[0].x, [100, 400, 900]);
  assert.equal(drawn.xaxis.title.text, "completion tokens sampled");
});

test("a missing axis is replaced by steps, with a reason", () => {
  let reason;
  const change = (store) => {
    reason = missingAxis(store, "samples");
  };
  const { data } = fill([line], { x: "samples", change });

  assert.match(reason, /total\/completions/);

  assert.deepEqual(data[0].x, [1, 2, 3]);
});

test("a log axis says how many values it cannot show", () => {
  const change = (store) => store.get("loss").values.splice(0, 3, -1, 0, 10);

  const { data, layout: drawn, notes } = fill([line], { address: "log=all", change });

  assert.equal(drawn.yaxis.type, "log");
  assert.deepEqual(data[0].y, [null, null, 10]);
  assert.deepEqual(notes, ["2 of 3 points ≤ 0 not shown"]);
});

test("one chart may have the axis that others have not", () => {
  assert.equal(fill([line], { address: "log=loss" }).layout.yaxis.type, "log");
  assert.equal(fill([line], { address: "log=kl" }).layout.yaxis.type, "linear");
  assert.equal(fill([line], { address: "log=all,loss" }).layout.yaxis.type, "linear");
});

test("without outliers the view says how many points lie outside", () => {
  const change = (store) => {
    const steps = Array.from({ length: 100 }, (_, i) => i + 1);
    const values = steps.map((step) => (step === 50 ? 1e6 : step / 100));
    store.curves.set("loss", { steps, values });
  };

  const { layout: drawn, notes } = fill([line], { address: "clip=all", change });

  assert.ok(drawn.yaxis.range[1] < 2);
  assert.deepEqual(notes, ["1 of 100 points outside the view"]);
});

test("what is never below 0 has no axis there", () => {
  const change = (store) => store.get("loss").values.splice(0, 3, 0, 0, 0);
  const below = (store) => store.get("loss").values.splice(0, 1, -1);
  assert.equal(fill([line], { change }).layout.yaxis.rangemode, "nonnegative");
  assert.equal(fill([line], { change: below }).layout.yaxis.rangemode, "normal");
});

test("an axis of large numbers counts in thousands", () => {
  const change = (store) => store.get("loss").values.splice(0, 1, 15_000);

  assert.equal(fill([line], { change }).layout.yaxis.tickformat, "~s");
  assert.equal(fill([line]).layout.yaxis.tickformat, undefined);
});

test("a legend leaves out what the title says, a file does not", () => {
  const scores = { ...line, meta: { each: "^eval/", cut: "eval/" } };

  const { data } = fill([scores]);

  assert.deepEqual(
    data.map(({ name }) => name),
    ["a", "b"],
  );
  assert.match(asCsv(data), /^step,eval\/a,eval\/b\n/);
});

test("a stack has neither a log axis nor outliers", () => {
  const layer = { ...line, stackgroup: "one" };

  const { layout: drawn, notes } = fill([layer], { address: "log=all&clip=all" });

  assert.equal(drawn.yaxis.type, undefined);
  assert.deepEqual(notes, []);
});

test("a range shows its steps and a neighbour on either side", () => {
  const change = (store) => {
    const steps = Array.from({ length: 100 }, (_, i) => i + 1);
    store.curves.set("loss", { steps, values: steps });
    store.clock = { steps, times: steps };
  };

  const { data, layout: drawn } = fill([line], { address: "from=40&to=50", change });

  assert.deepEqual(drawn.xaxis.range, [40, 50]);
  assert.equal(data[0].x[0], 39);
  assert.equal(data[0].x.at(-1), 51);
});

test("smoothing in a range begins before it", () => {
  const change = (store) => {
    const steps = Array.from({ length: 100 }, (_, i) => i + 1);
    store.curves.set("loss", { steps, values: steps.map((s) => Math.sin(s)) });
  };
  const whole = fill([line], { smoothing: 0.9, change }).data[1];
  const near = fill([line], { smoothing: 0.9, address: "from=40&to=50", change })
    .data[1];

  assert.equal(near.y[1], whole.y[39]);
});

const tail = (names) => ({
  attempt: 2,
  after: 2,
  clock: { steps: [3, 4], times: [1900, 2200] },
  curves: new Map(Object.entries(names)),
});
const gone = { steps: [3, 4], values: [30, 40] };

test("what a resume went back before is grey, dashed and named, beside the line", () => {
  const change = (store) => store.tails.push(tail({ loss: gone }));

  const { data, layout: drawn } = fill([line], { change });

  assert.deepEqual(data[0].y, [1, 2, 3]);
  const [, old] = data;
  assert.deepEqual(
    [old.x, old.y],
    [
      [3, 4],
      [30, 40],
    ],
  );
  assert.equal(old.line.dash, "dash");
  assert.equal(old.name, "superseded, before the resume at step 2");
  assert.equal(drawn.showlegend, true);
  assert.match(
    asCsv(data),
    /^step,loss,"loss: superseded, before the resume at step 2"$/m,
  );
});

test("superseded points lie at their own times and tokens", () => {
  const tokens = { steps: [3, 4], values: [950, 1_000] };
  const change = (store) =>
    store.tails.push(tail({ loss: gone, "total/tokens": tokens }));
  assert.deepEqual(fill([line], { x: "time", change }).data[1].x, [10, 15]);
  assert.deepEqual(fill([line], { x: "tokens", change }).data[1].x, [950, 1_000]);
});

test("superseded ends can be switched off, and bands and stacks have none", () => {
  const change = (store) => store.tails.push(tail({ loss: gone }));
  const edge = { ...line, line: { width: 0 } };
  const layer = { ...line, stackgroup: "one" };

  assert.equal(fill([line], { change, address: "tails=off" }).data.length, 1);
  assert.equal(fill([edge], { change }).data.length, 1);
  assert.equal(fill([layer], { change }).data.length, 1);
});

test("a chart of one metric says itself which metrics are never smoothed", () => {
  const each = (name) => ({
    ...line,
    meta: { each: `^${name}$`, smooth: true, still: "^eval/" },
  });

  const change = (store) => {
    lengthen(50)(store);
    store.evaluations.set("eval/a", store.curves.get("loss"));
  };

  assert.equal(fill([each("loss")], { smoothing: 0.5, change }).data.length, 2);
  assert.equal(fill([each("eval/a")], { smoothing: 0.5, change }).data.length, 1);
});

test("on a log axis a band ends at the lowest point that is shown", () => {
  const change = (store) => {
    store.get("loss").values.splice(0, 3, 4, 2, 8);
    store.curves.set("std", { steps: [1, 2, 3], values: [5, 1.5, 1] });
  };
  const edge = { ...line, line: { width: 0 }, showlegend: false };
  edge.meta = {
    ...line.meta,
    terms: [
      ["loss", 1],
      ["std", -1],
    ],
  };

  const { data } = fill([edge, line], { address: "log=all", change });

  assert.deepEqual(data[0].y, [2, 2, 7]);
});

test("a line alone is named by its card, not by a legend beside its superseded end", () => {
  const change = (store) => store.tails.push(tail({ loss: gone }));
  const bare = { ...layout, showlegend: false };
  const store = new RunStore();
  store.curves.set("loss", { steps: [1, 2], values: [1, 2] });
  store.clock = { steps: [1, 2], times: [1, 2] };
  change(store);
  const view = new View({ address: "smooth=0" });

  const { data, layout: drawn } = fillFigure(
    { data: [line], layout: bare },
    { store, view, read, revision: 1, id: "loss" },
  );

  assert.equal(drawn.showlegend, true);
  assert.deepEqual(
    data.map((trace) => trace.showlegend),
    [false, true],
  );
});
