// Superseded segments of a resumed run: grey and dashed.

import { makeAxis } from "./axis.js";
import { hoverOf } from "./labels.js";
import { clip, smooth } from "./series.js";

const WIDTH = 1.5;
const OPACITY = 0.75;

// The superseded segments of each plain line of a chart.
export function drawTails(traces, { store, view, read, last, range }) {
  if (!view.tails) return [];
  return store.tails.flatMap((tail) => {
    const axis = makeAxis(view.x, store, { last, source: tail });
    const drawn = traces
      .filter((trace) => isPlainLine(trace) && tail.curves.has(metricOf(trace)))
      .map((trace) => drawTail(trace, tail, { axis, view, read, range }))
      .filter(({ x }) => x.length > 0);
    return drawn.map((trace, i) => ({ ...trace, showlegend: i === 0 }));
  });
}

export function isPlainLine({ line, stackgroup, meta }) {
  return (
    meta.terms.length === 1 &&
    meta.terms[0][1] === 1 &&
    !stackgroup &&
    line?.width !== 0
  );
}

function metricOf({ meta }) {
  return meta.terms[0][0];
}

function drawTail(trace, tail, { axis, view, read, range }) {
  const { steps, values } = tail.curves.get(metricOf(trace));
  const weight = trace.meta.smooth ? view.smoothing : 0;
  const isNear = (step) => !range || (step >= range.first && step <= range.last);
  const near = steps.map((_, i) => i).filter((i) => isNear(steps[i]));
  const smoothed = smooth(clip(values), weight);
  const raw = near.map((i) => values[i]);
  const label = `superseded, before the resume at step ${tail.after.toLocaleString("en-US")}`;
  return {
    type: "scatter",
    mode: steps.length === 1 ? "markers" : "lines",
    name: label,
    x: near.map((i) => axis.position(steps[i])),
    y: near.map((i) => smoothed[i]),
    customdata: near.map((i) => steps[i]),
    line: { color: read("--cohort-quiet"), width: WIDTH, dash: "dash" },
    marker: { color: read("--cohort-quiet"), size: 5, symbol: "x" },
    opacity: OPACITY,
    legendgroup: `tail-${tail.attempt}`,
    ...hoverOf(
      { hovertemplate: `%{y:.3~g} (superseded)<extra>${trace.name}</extra>` },
      { raw, weight, read },
    ),
    meta: {
      raw,
      weight,
      of: trace.meta.full ?? trace.name,
      isTail: true,
    },
  };
}
