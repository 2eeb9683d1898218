import assert from "node:assert/strict";
import { test } from "node:test";

import { fillAnatomy } from "../../static/js/charts/signals/anatomy.js";
import { placeColumns } from "../../static/js/charts/signals/columns.js";
import { fillDistribution } from "../../static/js/charts/signals/distribution.js";
import { fillMap, placeOf } from "../../static/js/charts/signals/map.js";
import { fillPasses } from "../../static/js/charts/signals/passes.js";
import { fillRules } from "../../static/js/charts/signals/rules.js";

const options = { read: () => "#123456", revision: 1, order: "dataset" };
const layout = { xaxis: { title: {} }, yaxis: { title: {} } };

function column(first, last = first, more = {}) {
  return { first, last, ...more };
}

function signals(mixed, right) {
  return { mixed, all_right: right, all_wrong: 0, tied: 0, unscorable: 0 };
}

const map = {
  steps: [
    column(1, 1, { signals: signals(1, 1), num_effective: 4, num_sampled: 8 }),
    column(3, 3, { signals: signals(0, 1), num_effective: 0, num_sampled: 4 }),
  ],
  rows: [
    { num: 1, low: 5, high: 5 },
    { num: 1, low: 9, high: 9 },
  ],
  cells: {
    column: [0, 0, 1],
    row: [0, 1, 1],
    band: [0, 1, 1],
    spread: [0.25, 0, 0],
    mean: [0.5, 1, 1],
    num: [1, 1, 1],
    step: [1, 1, 3],
    prompt: [5, 9, 9],
  },
  num_prompts: 2,
  num_groups: 3,
  num_steps: 3,
  steps_a_column: 1,
  prompts_a_row: 1,
};
const mapFigure = {
  data: [{ type: "bar" }, { type: "heatmap" }, { type: "heatmap" }],
  layout: { ...layout, yaxis2: { title: { text: "effective" } } },
};

test("steps without groups leave a gap of their width", () => {
  assert.deepEqual(placeColumns([column(1, 5), column(11, 15), column(16, 17)]), {
    places: [0, 2, 3],
    num: 4,
    x0: 3,
    dx: 5,
  });
});

test("mixed groups are coloured by spread, others by signal", () => {
  const { data } = fillMap(mapFigure, map, options);

  assert.deepEqual(data[2].z, [
    [0.25, null, null],
    [null, null, null],
  ]);
  assert.deepEqual(data[1].z, [
    [null, null, null],
    [0.5, null, 0.5],
  ]);
});

test("a signal has a mark and a name besides its colour", () => {
  const { data } = fillMap(mapFigure, map, options);

  assert.deepEqual(data[1].text[1], ["▲", "", "▲"]); // of null, Plotly writes "null"
  assert.equal(data[1].texttemplate, "%{text}");
  assert.equal(
    data[2].hovertext[0][0],
    "step 1, prompt 5<br>◆ mixed<br>spread 0.25, mean 0.5",
  );
});

test("each band has a name and a mark", () => {
  const bands = [0, 1, 2, 3, 4, 5]; // trainer.events.Signal, then "dead"
  const cells = Object.fromEntries(
    ["column", "row", "spread", "mean", "num", "step", "prompt"].map((name) => [
      name,
      name === "row" ? bands : bands.map(() => 0),
    ]),
  );
  const rows = bands.map((low) => ({ num: 1, low, high: low }));

  const { data } = fillMap(
    mapFigure,
    { ...map, rows, cells: { ...cells, band: bands } },
    options,
  );

  const titles = data[2].hovertext.map(([text]) => text.split("<br>")[1]);
  assert.deepEqual(titles, [
    "◆ mixed",
    "▲ all correct",
    "▼ all wrong",
    "= tied",
    "= unscorable",
    "= several kinds without signal",
  ]);
  assert.deepEqual(data[1].z.slice(1, 3), [
    [0.5, null, null],
    [1.5, null, null],
  ]);
});

test("a click on a cell leads to its group, on a bar to its step", () => {
  const filled = fillMap(mapFigure, map, options);

  const cell = { data: { type: "heatmap" }, pointNumber: [1, 2] };
  assert.deepEqual(placeOf(cell, filled, map), { step: 3, prompt: 9 });
  assert.equal(placeOf({ ...cell, pointNumber: [0, 1] }, filled, map), null);
  const bar = { data: { type: "bar" }, pointNumber: 1 };
  assert.deepEqual(placeOf(bar, filled, map), { step: 3 });
});

test("a downsampled map shows its size", () => {
  const wide = {
    ...map,
    num_prompts: 150,
    prompts_a_row: 75,
    num_steps: 3_000,
    steps_a_column: 1_500,
  };

  const { note } = fillMap(mapFigure, wide, options);

  assert.equal(
    note,
    "3 groups: 3,000 steps in 2 columns of 1,500, 150 prompts in 2 rows of 75.",
  );
});

test("the table has the map's numbers, one row per step", () => {
  const { table } = fillMap(mapFigure, map, options);

  assert.deepEqual(table.rows[0], {
    step: 1,
    cells: ["step 1", "1", "1", "0", "0", "0", "4", "8"],
  });
});

test("a histogram's cell is the share of its column", () => {
  const answer = {
    columns: [column(1, 1, { num: 6, quantiles: [0, 0, 0, 0.5, 1, 1, 1] })],
    quantiles: [0, 5, 25, 50, 75, 95, 100],
    edges: [0, 0.5, 1.1, 1.6],
    counts: [[3, 1, 2]],
  };
  const figure = {
    data: [{ type: "heatmap" }, { type: "scatter", meta: { quantile: 50 } }],
    layout,
  };

  const { data } = fillDistribution(figure, answer, options);

  assert.deepEqual(data[0].z, [[1 / 2], [1 / 6], [1 / 3]]);
  assert.match(
    data[0].hovertext[1][0],
    /^0\.5 to 1\.1: 1 of 6 \(16\.7%\)<br>step 1<br>lowest 0, 5% 0,/,
  );
  assert.deepEqual(data[1].y, [0.5]);
});

test("the quantiles of two values are not drawn", () => {
  const answer = {
    columns: [column(1, 1, { num: 4, quantiles: [0, 1, 1] })],
    quantiles: [0, 50, 100],
    edges: [0, 0.5, 1.1],
    counts: [[2, 2]],
  };
  const figure = {
    data: [{ type: "heatmap" }, { type: "scatter", meta: { quantile: 50 } }],
    layout,
  };

  assert.equal(fillDistribution(figure, answer, options).data.length, 1);
});

const rules = {
  kind: "sum",
  columns: [column(1), column(2)],
  rules: ["answer", "a<b"],
  reward: [0.6, 0.5],
  part: { answer: [0.5, 0.5], "a<b": [0.1, 0] },
  mean: { answer: [0.8333, 1], "a<b": [0.1667, 0] },
  variance: { answer: [0.9, null], "a<b": [0.1, null] },
  rest: [0, null],
  facts: [],
};
const ruleFigure = { data: [{ type: "bar", marker: {} }], layout };

test("each rule is a layer with an escaped name", () => {
  const { data } = fillRules(ruleFigure, rules, { ...options, chart: "mean" });

  assert.deepEqual(
    data.map(({ name }) => name),
    ["answer", "a&lt;b"],
  );
  assert.deepEqual(data[1].customdata, ["16.7% (0.1)", "0% (0)"]);
});

test("the rest without a rule is a layer if there is any", () => {
  const names = (answer) =>
    fillRules(ruleFigure, answer, { ...options, chart: "variance" }).data.map(
      ({ name }) => name,
    );

  assert.deepEqual(names(rules), ["answer", "a&lt;b"]);
  assert.deepEqual(names({ ...rules, rest: [0.2, null] }), [
    "answer",
    "a&lt;b",
    "other",
  ]);
});

test("shares of a product are explained", () => {
  const fill = (kind) =>
    fillRules(ruleFigure, { ...rules, kind }, { ...options, chart: "variance" }).note;

  assert.equal(fill("sum"), "");
  assert.match(fill("product"), /squared correlation/);
});

test("facts are a note under their chart", () => {
  const answer = { ...rules, facts: ["answer made 96%"] };
  const fill = (chart) => fillRules(ruleFigure, answer, { ...options, chart });

  assert.equal(fill("variance").note, "answer made 96%");
  assert.equal(fill("mean").note, "");
});

test("a phase shows seconds, share and time without signal", () => {
  const answer = {
    columns: [column(1)],
    phases: ["generate", "other"],
    seconds: { generate: [6], other: [2], step: [8] },
    dead: [3],
    dead_of: { generate: [3] },
  };
  const bar = (phase) => ({ type: "bar", meta: { phase } });
  const figure = { data: [bar("generate"), bar("other"), { type: "scatter" }], layout };

  const { data } = fillAnatomy(figure, answer, options);

  assert.deepEqual(
    data.map(({ customdata }) => customdata[0]),
    ["6 s (75%), 3 s without signal", "2 s (25%)", "3 s (37.5%)"],
  );
});

test("steps without logged groups have no time without signal", () => {
  const answer = {
    columns: [column(1)],
    phases: ["generate"],
    seconds: { generate: [6], step: [6] },
    dead: [null],
    dead_of: { generate: [null] },
  };
  const figure = {
    data: [{ type: "bar", meta: { phase: "generate" } }, { type: "scatter" }],
    layout,
  };

  const { data } = fillAnatomy(figure, answer, options);

  assert.equal(data.at(-1).visible, false);
  assert.equal(data[0].customdata[0], "6 s (100%)");
});

const passes = {
  num_older: 0,
  columns: [column(1, 1, { num_groups: 4 }), column(2, 2, { num_groups: 1_200 })],
  shares: [
    [0.25, 0.5],
    [0.5, 0.75],
    [0.75, null],
  ],
  majorities: [
    [0.25, 0.5],
    [0.25, 0.6],
    [0.3, null],
  ],
  held_out: {
    held: {
      "pass@1": [[2], [0.4]],
      "pass@2": [[2], [0.6]],
      "pass@8": [[2], [0.9]],
      "maj@2": [[2], [0.5]],
    },
  },
};
const passFigure = {
  data: Array.from({ length: 3 }, () => ({ type: "scatter" })),
  layout,
};

test("pass@k uses the group size unless chosen", () => {
  const names = (k) =>
    fillPasses(passFigure, passes, { ...options, k }).data.map(({ name }) => name);

  const held = ["held pass@2", "held maj@2"];
  assert.deepEqual(names(null), ["pass@1", "pass@3", "maj@3", ...held]);
  assert.deepEqual(names(2), ["pass@1", "pass@2", "maj@2", ...held]);
  assert.deepEqual(names(99), ["pass@1", "pass@3", "maj@3", ...held]);
  assert.deepEqual(names(1), ["pass@1", "pass@1"]);
});

test("held-out sets have their largest measured k", () => {
  const { data } = fillPasses(
    passFigure,
    {
      ...passes,
      shares: Array.from({ length: 16 }, () => [0.5, 0.5]),
      majorities: [],
    },
    options,
  );

  const held = data.filter(({ name }) => name.startsWith("held"));
  assert.deepEqual(
    held.map(({ name, x, y }) => [name, x, y]),
    [
      ["held pass@8", [2], [0.9]],
      ["held maj@2", [2], [0.5]],
    ],
  );
});

test("maj@k requires a rule that reads answers", () => {
  const filled = fillPasses(passFigure, { ...passes, majorities: [] }, options);

  assert.match(filled.note, /^No maj@k/);
  assert.deepEqual(
    filled.table.head.filter((title) => title.startsWith("maj")),
    [],
  );
});

test("the first four held-out sets are drawn", () => {
  const sets = Object.fromEntries(
    ["a", "b", "c", "d", "e"].map((name) => [name, passes.held_out.held]),
  );

  const filled = fillPasses(passFigure, { ...passes, held_out: sets }, options);

  assert.equal(filled.data.filter(({ name }) => name.endsWith("maj@2")).length, 4);
  assert.match(filled.note, /4 of 5/);
});

test("the table has powers of two of k, and gaps without groups", () => {
  const { table } = fillPasses(passFigure, passes, options);

  const ks = ["pass@1", "pass@2", "pass@3", "maj@2", "maj@3"];
  assert.deepEqual(table.head, ["Steps", "Groups", ...ks]);
  const shares = ["50%", "75%", "–", "60%", "–"];
  assert.deepEqual(table.rows[1].cells, ["step 2", "1,200", ...shares]);
});

test("without a group there is nothing to draw", () => {
  const filled = fillPasses(
    passFigure,
    { num_older: 3, columns: [], shares: [], majorities: [], held_out: {} },
    options,
  );

  assert.equal(filled.isEmpty, true);
  assert.match(filled.note, /^3 steps/);
});
