// Each rule's part of the mean reward, or of the variance within groups.

import { sig3 } from "../../live/numbers.js";
import { asLabel } from "../labels.js";
import { resolveColors } from "../theme.js";
import { describeSteps, layOut, percent, placeBars } from "./columns.js";

const NUM_SERIES_COLORS = 10;
const LEAST_REST = 0.005;
const REST = "other";

const KINDS = {
  sum: { mean: "", variance: "" },
  normalized: {
    mean: "Each rule is normalised separately; updates follow Reward share by rule.",
    variance:
      "Each rule is normalised separately, so shares are of the sum of advantages.",
  },
  product: {
    mean: "The reward is a product, so the parts do not add up to it.",
    variance:
      "The reward is a product: each rule's squared correlation with it, as a share of the sum.",
  },
  minimum: {
    mean: "The reward is the smallest part, so the parts do not add up to it.",
    variance:
      "The reward is the smallest part: each rule's squared correlation with it, as a share of the sum.",
  },
};

export function fillRules(figure, answer, { read, revision, query, chart }) {
  const { columns, rules } = answer;
  const layers = rules.map((rule, i) => ({
    name: asLabel(rule),
    color: `var(--cohort-series-${(i % NUM_SERIES_COLORS) + 1})`,
    shares: answer[chart][rule],
    parts: chart === "mean" ? answer.part[rule] : null,
  }));
  const { rest } = answer;
  if (chart === "variance" && rest.some((share) => Math.abs(share) > LEAST_REST))
    layers.push({ name: REST, color: "var(--cohort-tied)", shares: rest, parts: null });
  const [template] = figure.data;
  const data = layers.map(({ name, color, shares, parts }) => ({
    ...resolveColors({ ...template, marker: { ...template.marker, color } }, read),
    ...placeBars(columns),
    name,
    y: shares,
    customdata: shares.map((share, i) => describeShare(share, parts?.[i])),
  }));
  return {
    data,
    layout: layOut(figure.layout, { columns, read, revision, query }),
    isEmpty: !columns.length || !layers.some(({ shares }) => shares.some(isNumber)),
    note: [KINDS[answer.kind][chart], ...(chart === "variance" ? answer.facts : [])]
      .join(" ")
      .trim(),
    table: {
      head: ["Steps", "Mean reward", ...layers.map(({ name }) => name)],
      rows: columns.map((column, i) => ({
        step: column.last,
        cells: [
          describeSteps(column),
          sig3(answer.reward[i]),
          ...layers.map(({ shares, parts }) => describeShare(shares[i], parts?.[i])),
        ],
      })),
    },
  };
}

function isNumber(value) {
  return value !== null;
}

function describeShare(share, part) {
  if (share === null) return "–";
  return part === undefined || part === null
    ? percent(share)
    : `${percent(share)} (${sig3(part)})`;
}
