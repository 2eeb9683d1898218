// Fills a figure that came from Python with the run's values.

import { alignSteps, combine, smooth, timeUnit } from "./series.js";
import { resolveColors, styleLayout, withAlpha } from "./theme.js";

const RAW_OPACITY = 0.25;
const NUM_SERIES_COLORS = 10;

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
  return { data, layout: layOut(figure.layout, { axis, view, read, revision }) };
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
    .sort();
  return names.map((name, i) => {
    const color = `var(--cohort-series-${(i % NUM_SERIES_COLORS) + 1})`;
    return {
      ...trace,
      // Plotly reads labels as a kind of HTML.
      name: name.replaceAll("&", "&amp;").replaceAll("<", "&lt;"),
      line: { ...trace.line, color },
      meta: { ...trace.meta, terms: [[name, 1]] },
    };
  });
}

function makeAxis(curves, { store, view }) {
  if (view.x !== "time") return { place: (step) => step, title: "step" };
  const start = store.clock.times[0] ?? 0;
  const last = Math.max(0, ...curves.map(({ steps }) => steps.at(-1) ?? 0));
  const unit = timeUnit((store.timeOf(last) ?? start) - start);
  return {
    place: (step) => (store.timeOf(step) - start) / unit.length,
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
