// How often one of k completions of a prompt is right, beside one alone.

import { resolveColors } from "../theme.js";
import { describeSteps, layOut, percent, placeBars, whole } from "./columns.js";

const show = (share) => (share === null ? "–" : percent(share));

// Of 1 … num: 1, 2, 4 … and the last.
export function chooseKs(num) {
  const ks = [];
  for (let k = 1; k < num; k *= 2) ks.push(k);
  return num ? [...ks, num] : [];
}

function tellOlder(num) {
  if (!num) return "";
  const steps = num === 1 ? "1 step is" : `${whole(num)} steps are`;
  return `${steps} older than this chart; manage.py fill_rollups makes it of them.`;
}

export function fillPasses(figure, answer, { read, revision, query, k }) {
  const { columns, shares } = answer;
  const num = shares.length;
  const chosen = Math.min(k || num, num);
  const [one, several] = resolveColors(figure.data, read);
  const { x } = placeBars(columns);
  const line = (trace, at) => ({
    ...trace,
    x,
    y: shares[at - 1] ?? [],
    name: `pass@${at}`,
    customdata: (shares[at - 1] ?? []).map(show),
  });
  const ks = chooseKs(num);
  return {
    data: [line(one, 1), line(several, Math.max(chosen, 1))],
    layout: layOut(figure.layout, { columns, read, revision, query }),
    isEmpty: !columns.length,
    note: tellOlder(answer.num_older),
    largest: num,
    table: {
      head: ["Steps", "Groups", ...ks.map((at) => `pass@${at}`)],
      rows: columns.map((column, i) => ({
        step: column.last,
        cells: [
          describeSteps(column),
          whole(column.num_groups),
          ...ks.map((at) => show(shares[at - 1][i])),
        ],
      })),
    },
  };
}
