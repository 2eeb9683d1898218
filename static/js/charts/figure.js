// Fills a figure that came from Python with the run's values.

import { markAlerts, groupAlerts } from "./alert_marks.js";
import { makeAxis } from "./axis.js";
import { asLabel, hoverOf } from "./labels.js";
import { drawParents, placeParents } from "./parents.js";
import { alignSteps, clip, combine, smooth } from "./series.js";
import { fitScale } from "./scale.js";
import { drawTails } from "./tails.js";
import { resolveColors, styleCard, withAlpha } from "./theme.js";

const MARKED_BELOW = 20; // points
const MARKER_SIZE = 5;
const RAW_OPACITY = 0.25;
const NUM_SERIES_COLORS = 10;
const BAND_ALPHA = 0.14;
const MAX_BANDS = 4; // more overlapping bands are unreadable
const LABEL_ALPHA = 0.75;
const SMOOTHED_FROM = 50; // points
const FLAT_BELOW = 1e-4;
const FEW_STEPS = 6; // of an axis that marks each
const TINY = /^lr$/; // metrics that are small by their nature

// `curveOf` returns the points of a metric to draw; see window.js.
export function fillFigure(
  figure,
  {
    store,
    view: chosen,
    read,
    revision,
    id,
    parents,
    alerts = [],
    curveOf = (metric) => store.get(metric),
  },
) {
  const traces = figure.data.flatMap((trace) => expand(trace, store));
  const curves = traces.map(({ meta }) =>
    within(combine(curveOf, meta.terms, meta.constant), meta.limits),
  );
  const most = Math.max(0, ...curves.map(({ steps }) => steps.length));
  const view = most < SMOOTHED_FROM ? unsmoothed(chosen) : chosen;
  const isStack = traces.some((trace) => trace.stackgroup);
  const aligned = isStack ? alignSteps(curves) : curves;
  const last = Math.max(0, ...aligned.map(({ steps }) => steps.at(-1) ?? 0));
  const placed = placeParents(parents, { view, store, last });
  const axis = makeAxis(view.x, store, {
    last,
    before: placed.map(({ axis }) => axis),
  });
  const range = view.range ?? null;
  const current = traces.flatMap((trace, i) =>
    draw(trace, aligned[i], { axis, view, read, range }),
  );
  const tails = drawTails(traces, { store, view, read, last, range });
  const before = drawParents(traces, { placed, view, read, range });
  const scale = fitScale([...before, ...current, ...tails], {
    isLog: Boolean(view.log?.has(id)),
    isClipped: Boolean(view.clip?.has(id)),
    isFixed: isStack || Boolean(figure.layout.yaxis.range),
  });
  const span = range ?? wholeSpan(store, axis);
  const layout = layOut(figure.layout, {
    axis,
    view,
    read,
    revision,
    range: span,
    scale,
  });
  const metrics = traces.flatMap(({ meta }) => meta.terms.map(([metric]) => metric));
  const extent = { range, last: store.lastStep };
  const places = view.alerts ? groupAlerts(alerts, metrics, extent) : [];
  const phases = markPhases(store.phases(), axis, read);
  const fired = markAlerts(places, axis, read, extent);
  if (tails.length || before.length) layout.showlegend = true;
  if (isStack) layout.showlegend = false; // see legend.js
  // A single line has no legend entry, since the card shows its name.
  const isNamed = figure.layout.showlegend !== false;
  const name = (trace) =>
    isNamed || trace.meta.isTail || trace.meta.isParent
      ? trace
      : { ...trace, showlegend: false };
  return {
    data: scale.data.map(name),
    layout: {
      ...layout,
      shapes: [...phases.shapes, ...fired.shapes],
      annotations: [...phases.annotations, ...fired.annotations],
    },
    notes: scale.notes,
    hasBeyond: Boolean(scale.hasBeyond),
    alerts: places.flat(),
    axis,
  };
}

function unsmoothed(view) {
  return Object.assign(Object.create(view), { smoothing: 0 });
}

// A sum that stands in for another metric may leave the possible values.
function within({ steps, values }, limits) {
  if (!limits) return { steps, values };
  const [low, high] = limits;
  return { steps, values: values.map((v) => Math.min(high, Math.max(low, v))) };
}

export function hasPoints(data) {
  return data.some((trace) => trace.x.length > 0);
}

// The metrics of a figure.
export function metricsOf(figure, store) {
  const traces = figure.data.flatMap((trace) => expand(trace, store));
  return traces.flatMap(({ meta }) => meta.terms.map(([metric]) => metric));
}

export function hasValues(metrics, store) {
  return metrics.some((metric) => store.rangeOf(metric));
}

// Whether charts of these metrics would show a line at 0.
export function isFlat(metrics, store) {
  const ranges = metrics.map((metric) => store.rangeOf(metric)).filter(Boolean);
  return (
    ranges.length > 0 &&
    !metrics.some((metric) => TINY.test(metric)) &&
    ranges.every(({ low, high }) => Math.max(-low, high) < FLAT_BELOW)
  );
}

// `meta.otherwise` stands in for metrics that a run lacks.
function fallBack(trace, store) {
  const { terms, otherwise, limits: _, ...meta } = trace.meta;
  if (!otherwise) return trace;
  const names = new Set(store.names());
  return terms.every(([metric]) => names.has(metric))
    ? { ...trace, meta: { ...meta, terms } }
    : { ...trace, meta: { ...trace.meta, terms: otherwise } };
}

// `meta.each` is a family of metrics with unknown names.
function expand(trace, store) {
  if (!trace.meta.each) return [fallBack(trace, store)];
  const pattern = new RegExp(trace.meta.each);
  const still = trace.meta.still && new RegExp(trace.meta.still);
  const names = store
    .names()
    .filter((name) => pattern.test(name))
    .sort((a, b) => a.localeCompare(b, "en", { numeric: true })); // pass@2, pass@16
  const hasBand = (name) => names.length <= MAX_BANDS || name.endsWith("/mean");
  return names.flatMap((name, i) => {
    const color = `var(--cohort-series-${(i % NUM_SERIES_COLORS) + 1})`;
    const line = {
      ...trace,
      name: trace.meta.name ?? asLabel(shorten(name, trace.meta)),
      line: { ...trace.line, color },
      meta: {
        ...trace.meta,
        full: name,
        terms: [[name, 1]],
        smooth: trace.meta.smooth && !still?.test(name),
      },
    };
    const isBanded = trace.meta.band && hasBand(name);
    return isBanded ? [...band(name, color, store), line] : [line];
  });
}

// Without the common parts, which the chart's title says.
function shorten(name, { cut = "", end = "" }) {
  const rest = name.startsWith(cut) ? name.slice(cut.length) : name;
  return end && rest.endsWith(end) ? rest.slice(0, -end.length) : rest;
}

// A metric's interval: the lower bound, and the upper one filled down to it.
function band(name, color, store) {
  const ends = ["low", "high"].map((end) => `${name}/${end}`);
  if (ends.some((end) => !store.get(end))) return [];
  return ends.map((end, i) => ({
    type: "scatter",
    name: asLabel(end),
    mode: "lines",
    line: { width: 0 },
    fill: i ? "tonexty" : undefined,
    fillcolor: color,
    hoverinfo: "skip",
    showlegend: false,
    meta: { terms: [[end, 1]], smooth: false, alpha: BAND_ALPHA },
  }));
}

function draw(trace, { steps, values }, { axis, view, read, range }) {
  const weight = trace.meta.smooth ? view.smoothing : 0;
  const shown = clip(values);
  const smoothed = smooth(shown, weight); // including points before the range
  const [start, end] = bounds(steps, range);
  const x = steps.slice(start, end).map(axis.position);
  const raw = values.slice(start, end);
  const colored = color(trace, read);
  const line = {
    ...colored,
    ...marks(trace, x.length),
    x,
    y: smoothed.slice(start, end),
    customdata: steps.slice(start, end),
    // Layers have one line each, as the label would cover the plot.
    ...hoverOf(trace, { raw, weight, read, isShort: Boolean(trace.stackgroup) }),
    meta: { ...trace.meta, raw, weight },
  };
  // No raw line behind bands and stacked layers.
  const hasRaw = weight > 0 && trace.line?.width > 0 && !trace.stackgroup;
  return hasRaw ? [faint(colored, x, shown.slice(start, end)), line] : [line];
}

// A line has no extent at its first point, and few points may lie far from each other.
function marks({ mode, line, stackgroup }, count) {
  const isLine = mode === "lines" && line?.width > 0;
  const isMarked = isLine && count < (stackgroup ? 2 : MARKED_BELOW);
  return isMarked ? { mode: "lines+markers", marker: { size: MARKER_SIZE } } : {};
}

// One more point on either side, so that lines reach the edges.
function bounds(steps, range) {
  if (!range) return [0, steps.length];
  const start = steps.findIndex((step) => step >= range.first);
  const end = steps.findLastIndex((step) => step <= range.last) + 1;
  return [Math.max(0, (start < 0 ? steps.length : start) - 1), end + 1];
}

function faint(trace, x, y) {
  return {
    ...trace,
    x,
    y,
    opacity: RAW_OPACITY,
    line: { ...trace.line, width: 1 },
    showlegend: false,
    hoverinfo: "skip",
    hovertemplate: undefined,
    meta: { ...trace.meta, isFaint: true },
  };
}

function color(trace, read) {
  const colored = resolveColors(trace, read);
  const alpha = trace.meta.alpha;
  if (alpha === undefined) return colored;
  return { ...colored, fillcolor: withAlpha(colored.fillcolor, alpha) };
}

// All steps of the run, those to come included: points do not move, and the charts of
// one run have one axis. Until a quarter is done, twice the steps so far.
function wholeSpan({ isLive, numSteps, lastStep }, { kind }) {
  const isEarly = lastStep > 0 && 4 * lastStep < numSteps;
  const planned = isEarly ? 2 * lastStep : numSteps;
  const last = isLive ? planned : lastStep;
  return last > 0 && kind === "step" ? { first: 0, last } : null;
}

function layOut(layout, { axis, view, read, revision, range, scale }) {
  const { xaxis } = layout;
  const title = { ...xaxis.title, text: axis.title };
  const styled = styleCard({ ...layout, xaxis: { ...xaxis, title } }, read);
  const ends = range && [axis.position(range.first), axis.position(range.last)];
  const isOfFewSteps = ends && axis.kind === "step" && ends[1] - ends[0] <= FEW_STEPS;
  return {
    ...styled,
    title: undefined, // on the card
    xaxis: {
      ...styled.xaxis,
      unifiedhovertitle: { text: axis.hover },
      ...(ends ? { range: ends, autorange: false } : { autorange: true }),
      ...(isOfFewSteps ? { dtick: 1 } : {}), // no step is between two others
      uirevision: `${view.x} ${ends}`, // zoom is shared by all charts
    },
    // Dragging selects steps; the y range follows the values.
    yaxis: { ...styled.yaxis, ...scale.axis, fixedrange: true, showspikes: false },
    uirevision: view.x,
    datarevision: revision,
  };
}

// A dotted line where each phase begins, with its name along it.
function markPhases(phases, axis, read) {
  const quiet = read("--cohort-quiet");
  const surface = withAlpha(read("--cohort-surface"), LABEL_ALPHA);
  const at = phases.map(({ firstStep }) => axis.before(firstStep));
  return {
    shapes: at.slice(1).map((x) => ({
      type: "line",
      xref: "x",
      yref: "paper",
      x0: x,
      x1: x,
      y0: 0,
      y1: 1,
      line: { color: quiet, width: 1, dash: "dot" },
    })),
    annotations: phases.map(({ name }, i) => ({
      text: asLabel(name),
      x: at[i],
      y: 1,
      xref: "x",
      yref: "paper",
      xanchor: "left",
      yanchor: "top",
      textangle: -90,
      showarrow: false,
      font: { size: 10, color: quiet },
      bgcolor: surface,
    })),
  };
}
