// Rewards or advantages by step: one histogram per column, with quantiles.

import { sig3 } from "../../live/numbers.js";
import { resolveColors } from "../theme.js";
import {
  centre,
  describeSteps,
  layOut,
  percent,
  placeColumns,
  whole,
} from "./columns.js";

const TWO_VALUES_FROM = 0.95; // of all values
const NAMES = ["lowest", "5%", "25%", "median", "75%", "95%", "highest"];

export function fillDistribution(figure, answer, { read, revision, query }) {
  const { columns, edges, counts } = answer;
  const { places, num, x0, dx } = placeColumns(columns);
  const grid = () => edges.slice(1).map(() => new Array(num).fill(null));
  const [shares, texts] = [grid(), grid()];
  counts.forEach((column, i) => {
    const summary = describeColumn(columns[i]);
    column.forEach((count, cell) => {
      if (!count) return;
      const share = count / columns[i].num;
      const between = `${sig3(edges[cell])} to ${sig3(edges[cell + 1])}`;
      shares[cell][places[i]] = share;
      texts[cell][places[i]] =
        `${between}: ${whole(count)} of ${whole(columns[i].num)} (${percent(share)})<br>${summary}`;
    });
  });
  const [cells, ...quantiles] = resolveColors(figure.data, read);
  // Of two rewards the median is one or the other, and would jump between them.
  const lines = hasTwoValues(counts) ? [] : quantiles;
  const data = [
    { ...cells, x0, dx, y: edges, z: shares, zmax: highest(shares), hovertext: texts },
    ...lines.map((line) => ({
      ...line,
      x: columns.map(centre),
      y: columns.map(
        ({ quantiles }) => quantiles[answer.quantiles.indexOf(line.meta.quantile)],
      ),
    })),
  ];
  return {
    data,
    layout: layOut(figure.layout, { columns, read, revision, query }),
    isEmpty: !columns.length,
    note: answer.note,
    table: {
      head: ["Steps", "Completions", ...NAMES],
      rows: columns.map((column) => ({
        step: column.last,
        cells: [
          describeSteps(column),
          whole(column.num),
          ...column.quantiles.map((value) => sig3(value)),
        ],
      })),
    },
  };
}

function hasTwoValues(counts) {
  const sums = counts.reduce(
    (all, column) => column.map((n, i) => n + (all[i] ?? 0)),
    [],
  );
  const total = sums.reduce((all, n) => all + n, 0);
  const [most = 0, second = 0] = sums.toSorted((a, b) => b - a);
  return most + second >= TWO_VALUES_FROM * total;
}

// The largest cell is the darkest; the tooltip shows its share.
function highest(shares) {
  return shares.flat().reduce((most, share) => Math.max(most, share ?? 0), 0) || 1;
}

function describeColumn(column) {
  const named = column.quantiles.map((value, i) => `${NAMES[i]} ${sig3(value)}`);
  const lines = [named.slice(0, 3), named.slice(3, 5), named.slice(5)];
  return [describeSteps(column), ...lines.map((line) => line.join(", "))].join("<br>");
}
