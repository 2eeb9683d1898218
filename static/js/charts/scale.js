// The y axis of a chart: logarithmic or linear, with or without outliers, and notes on
// hidden points.

import { clip, clipRange, LARGEST } from "./series.js";

const THOUSANDS_FROM = 10_000; // 15k, which Plotly would write as 1.5e+4
const POWERS_FROM = 1e27; // beyond the last SI prefix

export function fitScale(data, { isLog, isClipped, isFixed }) {
  if (isFixed) return { data, axis: {}, notes: [] };
  const points = data.filter(isCounted).flatMap(rawOf).filter(Number.isFinite);
  const notes = [];
  const beyond = points.filter((value) => Math.abs(value) >= LARGEST).length;
  if (beyond) notes.push(`${share(beyond, points)} beyond ±1e37, clipped`);
  if (isLog) {
    const missing = points.filter((value) => value <= 0).length;
    if (missing) notes.push(`${share(missing, points)} ≤ 0 not shown`);
  }
  const lowest = points.reduce((low, v) => (v > 0 ? Math.min(low, v) : low), Infinity);
  const range = isClipped ? clipRange(clip(points), { isLog }) : null;
  if (range) {
    const shown = isLog ? points.filter((value) => value > 0).map(Math.log10) : points;
    const outside = shown.filter((v) => v < range[0] || v > range[1]).length;
    if (outside) notes.push(`${share(outside, points)} outside the view`);
  }
  return {
    data: isLog ? data.map((trace) => withoutNonPositive(trace, lowest)) : data,
    axis: {
      type: isLog ? "log" : "linear",
      ...(isLog ? {} : fitTicks(data.flatMap(({ y }) => y))),
      ...(range ? { range, autorange: false } : { autorange: true }),
    },
    notes,
    hasBeyond: beyond > 0,
  };
}

// Metrics that are never negative, such as shares, start at 0.
function fitTicks(drawn) {
  const largest = drawn.reduce((most, v) => Math.max(most, Math.abs(v) || 0), 0);
  const isLarge = largest >= THOUSANDS_FROM && largest < POWERS_FROM;
  return {
    rangemode: drawn.some((value) => value < 0) ? "normal" : "nonnegative",
    ...(isLarge ? { tickformat: "~s" } : {}),
  };
}

// Values in the legend or at the pointer, each once.
function isCounted({ meta, line }) {
  return !meta.isFaint && !meta.isTail && !meta.isParent && line?.width !== 0;
}

function rawOf({ meta, y }) {
  return meta.raw ?? y;
}

function share(count, points) {
  const [some, all] = [count, points.length].map((n) => n.toLocaleString("en-US"));
  return `${some} of ${all} points`;
}

// A band extends to the lowest point; a line has a gap.
function withoutNonPositive(trace, lowest) {
  const isEdge = trace.line?.width === 0 && lowest < Infinity;
  const fit = (value) => (isEdge ? Math.max(value, lowest) : value > 0 ? value : null);
  return { ...trace, y: trace.y.map(fit) };
}
