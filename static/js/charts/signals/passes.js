// pass@1, pass@k and maj@k of the training groups and held-out sets.

import { asLabel } from "../labels.js";
import { resolveColors } from "../theme.js";
import { describeSteps, layOut, percent, placeBars, whole } from "./columns.js";

const MAX_SETS = 4; // held-out sets; more lines are unreadable

const show = (share) => (share === null ? "–" : percent(share));

// Of 1 … num: 1, 2, 4 … and the last.
export function chooseKs(num) {
  const ks = [];
  for (let k = 1; k < num; k *= 2) ks.push(k);
  return num ? [...ks, num] : [];
}

function tellOlder(num) {
  if (!num) return "";
  const steps = num === 1 ? "1 step has" : `${whole(num)} steps have`;
  return `${steps} no data for this chart; manage.py fill_rollups computes it.`;
}

function tellVotes({ columns, majorities }) {
  if (!columns.length || majorities.length) return "";
  return "No maj@k: no rule of this run reads a comparable answer.";
}

function tellSets(names) {
  if (names.length <= MAX_SETS) return "";
  return `Showing the first ${MAX_SETS} of ${names.length} held-out sets.`;
}

// The largest measured k up to this one.
export function nearestK(scores, kind, k) {
  const measured = Object.keys(scores)
    .filter((score) => score.startsWith(`${kind}@`))
    .map((score) => Number(score.slice(kind.length + 1)))
    .filter((each) => each > 1 && each <= k);
  return measured.length ? Math.max(...measured) : null;
}

// pass@k and maj@k of the held-out sets, for the largest measured k up to k.
function drawHeldOut(heldOut, { passes, votes, k }) {
  return Object.entries(heldOut)
    .slice(0, MAX_SETS)
    .flatMap(([set, scores]) =>
      [
        ["pass", passes],
        ["maj", votes],
      ].flatMap(([kind, trace]) => {
        const at = nearestK(scores, kind, k);
        if (at === null) return [];
        const [x, y] = scores[`${kind}@${at}`];
        return {
          ...trace,
          x,
          y,
          name: asLabel(`${set} ${kind}@${at}`),
          mode: "lines+markers",
          line: { ...trace.line, width: 1.5, dash: "dot" },
          marker: { size: 5 },
          customdata: y.map(show),
        };
      }),
    );
}

export function fillPasses(figure, answer, { read, revision, query, k }) {
  const { columns, shares, majorities, held_out: heldOut } = answer;
  const num = shares.length;
  const chosen = Math.max(Math.min(k || num, num), 1);
  const [one, several, votes] = resolveColors(figure.data, read);
  const { x } = placeBars(columns);
  const line = (trace, values, name) => ({
    ...trace,
    x,
    y: values ?? [],
    name,
    customdata: (values ?? []).map(show),
  });
  const hasVotes = majorities.length > 0 && chosen > 1;
  const ks = chooseKs(num);
  const cells = (i) => [
    ...ks.map((at) => show(shares[at - 1][i])),
    ...(majorities.length ? ks.slice(1).map((at) => show(majorities[at - 1][i])) : []),
  ];
  return {
    data: [
      line(one, shares[0], "pass@1"),
      line(several, shares[chosen - 1], `pass@${chosen}`),
      ...(hasVotes ? [line(votes, majorities[chosen - 1], `maj@${chosen}`)] : []),
      ...(columns.length
        ? drawHeldOut(heldOut, { passes: several, votes, k: chosen })
        : []),
    ],
    layout: layOut(figure.layout, { columns, read, revision, query }),
    isEmpty: !columns.length,
    note: [
      tellOlder(answer.num_older),
      tellVotes(answer),
      tellSets(Object.keys(heldOut)),
    ]
      .filter(Boolean)
      .join(" "),
    largest: num,
    table: {
      head: [
        "Steps",
        "Groups",
        ...ks.map((at) => `pass@${at}`),
        ...(majorities.length ? ks.slice(1).map((at) => `maj@${at}`) : []),
      ],
      rows: columns.map((column, i) => ({
        step: column.last,
        cells: [describeSteps(column), whole(column.num_groups), ...cells(i)],
      })),
    },
  };
}
