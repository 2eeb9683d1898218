// An alert on the charts of its metric: a thin line with a mark at its top.

import { withAlpha } from "./theme.js";

const MAX_MARKS = 40; // across a chart; alerts of one interval share a mark
const MAX_LISTED = 3; // of the alerts that share a mark
const NEAR_START = 0.04; // of a chart's width

// The alerts of a chart of these metrics, by step, grouped by interval:
// [[alert, …], …].
export function groupAlerts(alerts, metrics, { range, last }) {
  const first = range?.first ?? 0;
  const end = Math.min(range?.last ?? last, last); // a rollback may not have arrived yet
  const shown = alerts
    .filter(({ metric }) => metrics.includes(metric))
    .filter(({ step }) => step >= first && step <= end)
    .sort((a, b) => a.step - b.step || b.id - a.id);
  const width = intervalWidth(end - first);
  const intervals = new Map();
  for (const alert of shown) {
    const interval = Math.floor(alert.step / width);
    intervals.set(interval, [...(intervals.get(interval) ?? []), alert]);
  }
  return [...intervals.values()];
}

// A power of two, so that marks do not move while a run grows.
function intervalWidth(span) {
  let width = 1;
  while (span / width > MAX_MARKS) width *= 2;
  return width;
}

// Shapes and annotations of a layout. A click on a mark's text leads to `alert.url`.
export function markAlerts(groups, axis, read, { range, last } = {}) {
  const first = range?.first ?? 0;
  const span = (range?.last ?? last ?? 0) - first;
  // Next to the line, inside the axis range.
  const isAtStart = ({ step }) => step - first <= NEAR_START * span;
  return {
    shapes: groups.map((alerts) => {
      const x = axis.position(alerts[0].step);
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
    annotations: groups.map((alerts) => {
      const color = colorOf(alerts, read);
      return {
        text: signOf(alerts),
        hovertext: describe(alerts),
        captureevents: true,
        name: newest(alerts).url,
        x: axis.position(alerts[0].step),
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

// A mark that is no alert has a sign of its own.
function signOf(alerts) {
  const sign = newest(alerts).sign ?? "!";
  return alerts.length > 1 ? `${sign} ${alerts.length}` : sign;
}

// Firing alerts are highlighted.
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
  const listed = alerts.slice(0, MAX_LISTED).map((alert) => {
    const state = alert.is_muted ? `${alert.state}, muted` : alert.state;
    return plain(`${titleOf(alert)}: ${state}`);
  });
  const rest = alerts.length - listed.length;
  const more = rest ? [`and ${rest} more`] : [];
  return [...listed, ...more].join("<br>");
}

// Plotly reads labels as a kind of HTML.
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}
