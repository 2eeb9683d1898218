// The x axis: maps steps to positions and back.

import { interpolate } from "../live/store.js";
import { clipped, timeUnit } from "./series.js";

// Totals come from ingest, since a downsampled history cannot be summed.
export const TOTALS = { tokens: "total/tokens", samples: "total/completions" };
const TITLES = {
  tokens: "completion tokens sampled",
  samples: "completions sampled",
};

// Why a run lacks this axis; undefined if it has it.
export function missingAxis(store, x) {
  const metric = TOTALS[x];
  if (!metric || store.get(metric) || !store.clock.steps.length) return "";
  return `unavailable: this run lacks ${metric} from its first step`;
}

// `source` is the store, or a superseded segment with its own clock and curves; `before`
// are the axes of a fork's parents, oldest first.
export function makeAxis(x, store, { last, source = store, before = [] }) {
  const axis = ownAxis(x, store, { last, source });
  return axis.steps ? bySteps(joined([...before, axis])) : axis;
}

// Of a fork's parent; undefined if it lacks this axis.
export function makeParentAxis(x, store, { last, parent }) {
  const isCounted = parent.fork === null || parent.fork.seconds !== null;
  const begin = isCounted ? beginOf(parent.clock, parent.fork) : null;
  if (kindOf(x, store) === "time" && (begin === null || !isPlaced(store))) return null;
  const axis = ownAxis(x, store, { last, source: { ...parent, begin } });
  return axis.steps && !axis.steps.length ? null : axis;
}

function kindOf(x, store) {
  if (TOTALS[x]) return missingAxis(store, x) ? "step" : x;
  return x === "time" ? x : "step";
}

function isPlaced({ fork }) {
  return fork?.seconds !== null && fork?.seconds !== undefined;
}

function ownAxis(x, store, { last, source }) {
  const kind = kindOf(x, store);
  if (TOTALS[kind]) return totalAxis(kind, source);
  if (kind === "time") return timeAxis(store, { last, source });
  return {
    kind,
    position: (step) => step,
    stepAt: (at) => at,
    // A phase starts when the step before its first one ends.
    before: (step) => step - 0.5,
    title: "", // an axis without a title has steps
    hover: "step %{x}",
  };
}

// Time 0 is the end of the first step. A fork continues its parent's time, as in
// dashboard/runs/charts/series.py.
export function beginOf({ steps = [], times = [] }, fork) {
  if (!times.length) return 0;
  if (fork?.seconds === null || fork?.seconds === undefined) return times[0];
  const pace = times.length > 1 ? (times[1] - times[0]) / (steps[1] - steps[0]) : 0;
  return times[0] - pace * (steps[0] - fork.step) - fork.seconds;
}

function timeAxis(store, { last, source }) {
  const own = beginOf(store.clock, store.fork);
  const begin = source.begin ?? own;
  const span = (store.timeOf(last) ?? own) - own;
  const unit = timeUnit(Math.max(span, store.fork?.seconds ?? 0));
  const { steps, times } = source.clock;
  const parents = isPlaced(store) ? ", parents included" : "";
  return bySteps({
    kind: "time",
    steps,
    at: times.map((time) => (time - begin) / unit.length),
    title: `${unit.name} since the first step${parents}`,
    hover: `%{x:.3~f} ${unit.name}`,
  });
}

function totalAxis(x, source) {
  const { curves } = source;
  const { steps, values } = clipped(curves.get(TOTALS[x]) ?? { steps: [], values: [] });
  const title = TITLES[x];
  return bySteps({ kind: x, steps, at: values, title, hover: `%{x:.4~s} ${title}` });
}

function joined(axes) {
  const steps = axes.flatMap((axis) => axis.steps);
  const at = axes.flatMap((axis) => axis.at);
  return { ...axes.at(-1), steps, at };
}

function bySteps({ steps, at, ...axis }) {
  const position = (step) => interpolate(steps, at, step);
  return {
    ...axis,
    steps,
    at,
    position,
    stepAt: (x) => interpolate(at, steps, x),
    before: (step) => position(step - 1),
  };
}
