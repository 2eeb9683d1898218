// Where an alert fired: a thin line on the charts of its metric, with a mark at its top.

import { withAlpha } from "./theme.js";

const MAX_PLACES = 40; // across a chart; alerts of one place share a mark
const MAX_TOLD = 3; // of the alerts that share one
const NEAR_START = 0.04; // of a chart's width

// The alerts that a chart of these metrics marks, by rising step, those of one place
// together: [[alert, …], …].
export function placeAlerts(alerts, metrics, { range, last }) {
  const first = range?.first ?? 0;
  const end = Math.min(range?.last ?? last, last); // a rewind may not be heard of yet
  const shown = alerts
    .filter(({ metric }) => metrics.includes(metric))
    .filter(({ step }) => step >= first && step <= end)
    .sort((a, b) => a.step - b.step || b.id - a.id);
  const width = placeWidth(end - first);
  const places = new Map();
  for (const alert of shown) {
    const place = Math.floor(alert.step / width);
    places.set(place, [...(places.get(place) ?? []), alert]);
  }
  return [...places.values()];
}

// A power of two, so that no mark moves while a run grows.
function placeWidth(span) {
  let width = 1;
  while (span / width > MAX_PLACES) width *= 2;
  return width;
}

// Shapes and annotations of a layout. A click on a mark's text leads to `alert.url`.
export function markAlerts(places, axis, read, { range, last } = {}) {
  const first = range?.first ?? 0;
  const span = (range?.last ?? last ?? 0) - first;
  // Beside the line: at the end of the axis not past it, at its beginning not on it.
  const isAtStart = ({ step }) => step - first <= NEAR_START * span;
  return {
    shapes: places.map((alerts) => {
      const x = axis.place(alerts[0].step);
      const line = { color: withAlpha(colorOf(alerts, read), 0.6), width: 1 };
      return {
        type: "line",
        xref: "x",
        yref: "paper",
        x0: x,
        x1: x,
        y0: 0,
        y1: 1,
        line,
      };
    }),
    annotations: places.map((alerts) => {
      const color = colorOf(alerts, read);
      return {
        text: alerts.length > 1 ? `! ${alerts.length}` : "!",
        hovertext: describe(alerts),
        captureevents: true,
        name: newest(alerts).url,
        x: axis.place(alerts[0].step),
        y: 1,
        xref: "x",
        yref: "paper",
        xanchor: isAtStart(alerts[0]) ? "left" : "right",
        yanchor: "top",
        showarrow: false,
        borderpad: 2,
        borderwidth: 1,
        bordercolor: color,
        bgcolor: read("--cohort-surface"),
        font: { size: 10, color },
        hoverlabel: {
          bgcolor: read("--cohort-surface"),
          bordercolor: color,
          font: { color: read("--cohort-text") },
        },
      };
    }),
  };
}

// What nobody looks after yet stands out.
function colorOf(alerts, read) {
  const isLoud = alerts.some(({ state, is_muted }) => state === "firing" && !is_muted);
  return read(isLoud ? "--cohort-warning" : "--cohort-quiet");
}

export function newest(alerts) {
  return alerts.reduce((one, other) => (other.id > one.id ? other : one));
}

export function titleOf({ name, step }) {
  return `${name}, step ${step.toLocaleString("en-US")}`;
}

function describe(alerts) {
  const told = alerts.slice(0, MAX_TOLD).map((alert) => {
    const state = alert.is_muted ? `${alert.state}, muted` : alert.state;
    return plain(`${titleOf(alert)}: ${state}`);
  });
  const rest = alerts.length - told.length;
  const more = rest ? [`and ${rest} more`] : [];
  return [...told, ...more].join("<br>");
}

// Plotly reads labels as a kind of HTML.
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}
