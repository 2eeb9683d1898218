// The signal map: steps across, prompts down.

import { sig3 } from "../../live/numbers.js";
import { resolveColors } from "../theme.js";
import { describeSteps, layOut, placeBars, placeColumns, whole } from "./columns.js";

// In the server's order: trainer.events.Signal, then several kinds without signal.
const BANDS = [
  { mark: "◆", words: "mixed" },
  { mark: "▲", words: "all correct", code: 0.5 },
  { mark: "▼", words: "all wrong", code: 1.5 },
  { mark: "=", words: "tied", code: 2.5 },
  { mark: "=", words: "unscorable", code: 2.5 },
  { mark: "=", words: "several kinds without signal", code: 2.5 },
];
const MIXED = 0;
// With fewer cells, each has space for its mark.
const MARKED_COLUMNS = 48;
const MARKED_ROWS = 16;
const NUM_TICKS = 8;

export function fillMap(figure, answer, { read, revision, query, order }) {
  const { steps: columns, rows, cells } = answer;
  const { places, num, x0, dx } = placeColumns(columns);
  const grid = (nothing = null) => rows.map(() => new Array(num).fill(nothing));
  const [dead, mixed, texts, index] = [grid(), grid(), grid(), grid()];
  const marks = grid(""); // Plotly would write "null"
  cells.band.forEach((band, i) => {
    const [row, column] = [cells.row[i], places[cells.column[i]]];
    if (band === MIXED) mixed[row][column] = cells.spread[i];
    else dead[row][column] = BANDS[band].code;
    texts[row][column] = describeCell(answer, i);
    marks[row][column] = BANDS[band].mark;
    index[row][column] = i;
  });
  const hasRoom = num <= MARKED_COLUMNS && rows.length <= MARKED_ROWS;
  const place = { x0, dx, y0: 0, dy: 1, hovertext: texts };
  const marked = { text: marks, texttemplate: hasRoom ? "%{text}" : "" };
  const [bar, deadCells, mixedCells] = resolveColors(figure.data, read);
  const data = [
    {
      ...bar,
      ...placeBars(columns),
      y: columns.map((column) => column.num_effective),
      hovertext: columns.map(describeColumn),
    },
    { ...deadCells, ...place, ...marked, z: dead, textfont: inkOf(read, "surface") },
    { ...mixedCells, ...place, ...marked, z: mixed, textfont: inkOf(read, "text") },
  ];
  const layout = layOut(figure.layout, { columns, read, revision, query });
  const rowAxis = nameRows(answer, order, layout.yaxis);
  return {
    data,
    layout: { ...layout, yaxis: rowAxis },
    isEmpty: !columns.length,
    index,
    note: describeExtent(answer),
    table: tabulate(columns),
  };
}

function inkOf(read, name) {
  return { color: read(`--cohort-${name}`), size: 9 };
}

// The group of a click on a cell or on a column's bar.
export function placeOf(point, filled, { cells, steps }) {
  if (point.data.type === "bar") return { step: steps[point.pointNumber].last };
  const [row, column] = point.pointNumber;
  const i = filled.index[row][column];
  return i === null ? null : { step: cells.step[i], prompt: cells.prompt[i] };
}

function describeCell({ steps, rows, cells }, i) {
  const { mark, words } = BANDS[cells.band[i]];
  const [column, row] = [steps[cells.column[i]], rows[cells.row[i]]];
  const num = cells.num[i];
  const prompts = row.num === 1 ? `prompt ${row.low}` : `${row.num} prompts`;
  const spread = `spread ${sig3(cells.spread[i])}, mean ${sig3(cells.mean[i])}`;
  const lines = [
    `${describeSteps(column)}, ${prompts}`,
    `${mark} ${words}${num > 1 ? `, ${whole(num)} groups` : ""}`,
    spread,
  ];
  if (num > 1) lines.push(`newest: step ${cells.step[i]}, prompt ${cells.prompt[i]}`);
  return lines.join("<br>");
}

function describeColumn(column) {
  const { mixed } = column.signals;
  const all = Object.values(column.signals).reduce((a, b) => a + b);
  const batch = `${whole(column.num_effective)} of ${whole(column.num_sampled)} completions`;
  const lines = [
    describeSteps(column),
    `${batch} with signal${column.first === column.last ? "" : " per step"}`,
    `${whole(mixed)} of ${whole(all)} groups are mixed`,
  ];
  return lines.join("<br>");
}

// Labels of a few rows: prompt, or rank if a row has several prompts in another order.
function nameRows({ rows, prompts_a_row: each }, order, axis) {
  const stride = Math.max(1, Math.ceil(rows.length / NUM_TICKS));
  const at = rows.map((_, row) => row).filter((row) => row % stride === 0);
  const isRank = each > 1 && order !== "dataset";
  const name = (row) => (isRank ? `${whole(row * each + 1)}.` : String(rows[row].low));
  const title = { ...axis.title, text: isRank ? "rank of prompt" : "prompt" };
  return { ...axis, title, tickvals: at, ticktext: at.map(name) };
}

function describeExtent(answer) {
  if (!answer.steps.length) return "";
  const { steps, rows, num_prompts, num_groups, steps_a_column, prompts_a_row } =
    answer;
  const across =
    steps_a_column === 1
      ? `${whole(steps.length)} steps with groups`
      : `${whole(answer.num_steps)} steps in ${whole(steps.length)} columns of ${whole(steps_a_column)}`;
  const down =
    prompts_a_row === 1
      ? `${whole(num_prompts)} prompts`
      : `${whole(num_prompts)} prompts in ${whole(rows.length)} rows of ${whole(prompts_a_row)}`;
  return `${whole(num_groups)} groups: ${across}, ${down}.`;
}

function tabulate(columns) {
  const names = ["mixed", "all_right", "all_wrong", "tied", "unscorable"];
  const words = ["◆ mixed", "▲ all correct", "▼ all wrong", "= tied", "= unscorable"];
  return {
    head: ["Steps", ...words, "Effective batch", "Sampled"],
    rows: columns.map((column) => ({
      step: column.last,
      cells: [
        describeSteps(column),
        ...names.map((name) => whole(column.signals[name])),
        whole(column.num_effective),
        whole(column.num_sampled),
      ],
    })),
  };
}
