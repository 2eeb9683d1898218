// Fills a figure that came from Python with the run's values.

import { alignSteps, combine, smooth, timeUnit } from "./series.js";
import { resolveColors, styleLayout, withAlpha } from "./theme.js";

const RAW_OPACITY = 0.25;
const NUM_SERIES_COLORS = 10;
const BAND_ALPHA = 0.14;
const MAX_BANDS = 4; // more of them over one another say nothing
const LABEL_ALPHA = 0.75;

export function fillFigure(figure, { store, view, read, revision }) {
  const traces = figure.data.flatMap((trace) => expand(trace, store));
  const curves = traces.map(({ meta }) =>
    combine((metric) => store.get(metric), meta.terms, meta.constant),
  );
  const isStack = traces.some((trace) => trace.stackgroup);
  const aligned = isStack ? alignSteps(curves) : curves;
  const axis = makeAxis(aligned, { store, view });
  const data = traces.flatMap((trace, i) =>
    draw(trace, aligned[i], { axis, view, read }),
  );
  const layout = layOut(figure.layout, { axis, view, read, revision });
  return { data, layout: { ...layout, ...markPhases(store.phases(), axis, read) } };
}

export function hasPoints(data) {
  return data.some((trace) => trace.x.length > 0);
}

// `meta.each` stands for a family of metrics whose names are not known beforehand.
function expand(trace, store) {
  if (!trace.meta.each) return [trace];
  const pattern = new RegExp(trace.meta.each);
  const names = store
    .names()
    .filter((name) => pattern.test(name))
    .sort((a, b) => a.localeCompare(b, "en", { numeric: true })); // pass@2, pass@16
  const hasBand = (name) => names.length <= MAX_BANDS || name.endsWith("/mean");
  return names.flatMap((name, i) => {
    const color = `var(--cohort-series-${(i % NUM_SERIES_COLORS) + 1})`;
    const line = {
      ...trace,
      name: plain(name),
      line: { ...trace.line, color },
      meta: { ...trace.meta, terms: [[name, 1]] },
    };
    const isBanded = trace.meta.band && hasBand(name);
    return isBanded ? [...band(name, color, store), line] : [line];
  });
}

// Plotly reads labels as a kind of HTML.
function plain(name) {
  return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

// A metric's interval: its lower edge, and its upper one filled down to that.
function band(name, color, store) {
  const ends = ["low", "high"].map((end) => `${name}/${end}`);
  if (ends.some((end) => !store.get(end))) return [];
  return ends.map((end, i) => ({
    type: "scatter",
    name: plain(end),
    mode: "lines",
    line: { width: 0 },
    fill: i ? "tonexty" : undefined,
    fillcolor: color,
    hoverinfo: "skip",
    showlegend: false,
    meta: { terms: [[end, 1]], smooth: false, alpha: BAND_ALPHA },
  }));
}

function makeAxis(curves, { store, view }) {
  // A phase begins when the step before its first one has ended.
  if (view.x !== "time")
    return { place: (step) => step, before: (step) => step - 0.5, title: "step" };
  const start = store.clock.times[0] ?? 0;
  const last = Math.max(0, ...curves.map(({ steps }) => steps.at(-1) ?? 0));
  const unit = timeUnit((store.timeOf(last) ?? start) - start);
  const place = (step) => (store.timeOf(step) - start) / unit.length;
  return {
    place,
    before: (step) => place(step - 1),
    title: `${unit.name} since the first step`,
    unit: unit.name,
  };
}

function draw(trace, { steps, values }, { axis, view, read }) {
  const weight = trace.meta.smooth ? view.smoothing : 0;
  const x = steps.map(axis.place);
  const colored = color(trace, read);
  const line = { ...colored, x, y: smooth(values, weight), customdata: steps };
  // Behind a band's edges and a stack's layers a raw line would say nothing.
  const hasRaw = weight > 0 && trace.line?.width > 0 && !trace.stackgroup;
  return hasRaw ? [faint(colored, x, values), line] : [line];
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
  };
}

function color(trace, read) {
  const colored = resolveColors(trace, read);
  const alpha = trace.meta.alpha;
  if (alpha === undefined) return colored;
  return { ...colored, fillcolor: withAlpha(colored.fillcolor, alpha) };
}

function layOut(layout, { axis, view, read, revision }) {
  const decorate = (own, colors) => ({
    ...colors.axis,
    automargin: true,
    ...own,
    title: { ...own.title, font: { size: 11, color: colors.title.color }, standoff: 6 },
    tickfont: { ...colors.axis.tickfont, size: 11 },
  });
  const styled = styleLayout(layout, read, decorate);
  return {
    ...styled,
    title: undefined, // the card bears it
    margin: { l: 48, r: 12, t: 8, b: 36 },
    legend: {
      orientation: "h",
      traceorder: "normal",
      entrywidth: 0,
      x: 0,
      y: 1,
      yanchor: "bottom",
      font: { size: 11 },
    },
    xaxis: {
      ...styled.xaxis,
      title: { ...styled.xaxis.title, text: axis.title },
      unifiedhovertitle: { text: axis.unit ? `%{x:.3~f} ${axis.unit}` : "step %{x}" },
    },
    uirevision: view.x, // zoom stays until the axis means something else
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
      text: plain(name),
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
