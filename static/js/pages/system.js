// What a run's machine used, over time or over steps, and while it is used. It is
// read once its charts are nearly in view.

import { join, line, metricsOf, scaleOf, withUnit } from "../charts/system.js";
import { CONFIG, readColors, resolveColors, styleLayout } from "../charts/theme.js";

const root = document.querySelector("[data-system]");
const axis = root.querySelector("[data-system-axis]");
const reset = root.querySelector("[data-system-reset]");
const status = root.querySelector("[data-system-status]");
const figures = JSON.parse(document.getElementById("system-figures").textContent);

const ASK_EVERY = 5_000;
const MAX_POINTS = 1_000; // then they are asked for again, thinned
const NOTHING = { attempt: [], time: [], step: [], values: {} };
const SERIES = 10;
// Back to all of it, also where the address began with less.
const PLOT_CONFIG = { ...CONFIG, doubleClick: "autosize" };
const FINGERS = window.matchMedia("(pointer: coarse)");

// What is shown is in the address, so a link shows the same.
const query = new URLSearchParams(location.search);
const view = { first: query.get("first"), last: query.get("last") };
const charts = new Map(); // element -> { figure, isVisible, isStale }
let samples = NOTHING;
let hasEnded = "ended" in root.dataset;
let isOwed = true; // what was asked for has not come
let isNear = false; // the section is in view, or nearly
let request = null; // that is under way; a new one ends it

function say(text) {
  if (status.textContent !== text) status.textContent = text;
}

async function ask(extra = {}) {
  request?.abort();
  const mine = new AbortController();
  request = mine;
  const parameters = { x: axis.value, ...bounds(), ...extra };
  try {
    const url = `${root.dataset.system}?${new URLSearchParams(parameters)}`;
    const answer = await fetch(url, { signal: mine.signal });
    if (!answer.ok) throw new Error(`Server error (HTTP ${answer.status}).`);
    const found = await answer.json();
    if (mine !== request) return null;
    hasEnded = found.has_ended;
    renewRanks(found.ranks_step);
    if (samples.time.length || found.time.length) say("");
    return found;
  } catch {
    if (mine === request) say("Cannot reach Cohort. Retrying.");
    return null;
  } finally {
    if (mine === request) request = null;
  }
}

function renewRanks(step) {
  const table = document.querySelector("[data-ranks]");
  if (table && step && table.dataset.ranksStep !== step)
    table.dispatchEvent(new Event("ranks-changed"));
}

function bounds() {
  const { first, last } = view;
  return first === null || last === null ? {} : { first, last };
}

async function askAll() {
  isOwed = true;
  const found = await ask();
  if (!found) return;
  isOwed = false;
  samples = found;
  show();
}

async function askNewer() {
  const isSeen = isNear || [...charts.values()].some(({ isVisible }) => isVisible);
  if (document.hidden || !isSeen || request) return;
  if (!isOwed && (view.first !== null || hasEnded)) return;
  if (
    isOwed ||
    !samples.time.length ||
    axis.value === "step" ||
    samples.time.length > MAX_POINTS
  ) {
    await askAll();
    return;
  }
  const found = await ask({ after: Math.max(...samples.time) + 0.001 });
  if (!found?.time.length) return;
  samples = join(samples, found);
  show();
}

function show() {
  const hasGpus = metricsOf(samples, "gpu_use").length > 0;
  if (hasGpus)
    for (const part of document.querySelectorAll("[data-of-gpus][data-lacks]"))
      delete part.dataset.lacks;
  const noGpu = root.querySelector("[data-system-no-gpu]");
  if (noGpu && hasGpus) noGpu.hidden = true;
  for (const [element, chart] of charts) {
    chart.isStale = true;
    showLast(element, chart.figure);
  }
  draw();
}

function showLast(element, figure) {
  const unit = figure.layout.yaxis.ticksuffix.trim();
  const texts = tracesOf(figure).map(({ name, meta }) => {
    const last = samples.values[meta.metric]?.at(-1);
    return `${name} ${withUnit(last, unit)}`;
  });
  const place = element.closest(".chart").querySelector("[data-system-last]");
  place.textContent = samples.time.length ? texts.join(", ") : "";
}

function tracesOf(figure) {
  return figure.data.flatMap((trace) => {
    const metrics = metricsOf(samples, trace.meta.metric);
    if (metrics.length === 1 && metrics[0] === trace.meta.metric) return [trace];
    return metrics.map((metric, i) => ({
      ...trace,
      name: `GPU ${metric.split("/")[1]}`,
      line: { ...trace.line, color: `var(--cohort-series-${(i % SERIES) + 1})` },
      meta: { metric },
    }));
  });
}

function draw() {
  if (document.hidden || !samples.time.length) return;
  const read = readColors();
  for (const [element, chart] of charts)
    if (chart.isVisible && chart.isStale) {
      chart.isStale = false;
      drawChart(element, chart.figure, read);
    }
}

function drawChart(element, figure, read) {
  const traces = tracesOf(figure);
  const { factor, suffix } = scaleOf(
    traces.map(({ meta }) => samples.values[meta.metric]),
    figure.layout.yaxis.ticksuffix.trim(),
  );
  const data = traces.map((trace) => {
    const { x, y } = line(samples, trace.meta.metric, axis.value);
    return {
      ...resolveColors(trace, read),
      x,
      y: y.map((value) => (value === null ? null : value / factor)),
      hovertemplate: trace.hovertemplate + suffix,
      showlegend: true,
    };
  });
  const isFirst = !element.classList.contains("js-plotly-plot");
  if (isFirst) element.replaceChildren();
  const dragmode = FINGERS.matches ? false : "zoom"; // fingers scroll the page
  const layout = { ...layOut(figure.layout, read), dragmode };
  layout.yaxis.ticksuffix = suffix;
  window.Plotly.react(element, data, layout, PLOT_CONFIG);
  if (!isFirst) return;
  element.on("plotly_relayout", zoom);
  element.on("plotly_hover", ({ xvals, points }) => {
    echo(element, xvals?.[0] ?? points[0]?.x);
  });
  element.on("plotly_unhover", () => echo(element, null));
}

// The same place in the other charts in view; their own hovering is no news.
let isEchoed = false;
function echo(source, x) {
  if (isEchoed) return;
  isEchoed = true;
  for (const [element, { isVisible }] of charts) {
    const isDrawn = element.classList.contains("js-plotly-plot");
    if (element === source || !isVisible || !isDrawn) continue;
    if (x === null || x === undefined) window.Plotly.Fx.unhover(element, {});
    else window.Plotly.Fx.hover(element, { xval: x }, "xy");
  }
  isEchoed = false;
}

function layOut(layout, read) {
  const isTime = axis.value === "time";
  const decorate = (own, colors) => ({
    ...colors.axis,
    automargin: true,
    ...own,
    tickfont: { ...colors.axis.tickfont, size: 11 },
  });
  const styled = styleLayout(layout, read, decorate);
  const title = isTime ? "time (UTC)" : "step";
  const ends = zoomed();
  return {
    ...styled,
    margin: { l: 52, r: 12, t: 8, b: 36 },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { size: 11 } },
    xaxis: {
      ...styled.xaxis,
      type: isTime ? "date" : "linear",
      title: { text: title, font: { size: 11, color: read("--cohort-quiet") } },
      ...(ends ? { range: ends, autorange: false } : { autorange: true }),
    },
    yaxis: { ...styled.yaxis, fixedrange: true },
    uirevision: `${axis.value} ${view.first} ${view.last}`,
  };
}

// The ends of what is shown, as the axis counts; null: all of it.
function zoomed() {
  const { first, last } = view;
  if (first === null || last === null) return null;
  return [Number(first), Number(last)].map((end) =>
    axis.value === "time" ? new Date(end * 1000).toISOString() : end,
  );
}

// All charts show the same stretch, with as many points as there are for it.
function zoom(change) {
  const from = change["xaxis.range[0]"];
  const to = change["xaxis.range[1]"];
  if (from !== undefined && to !== undefined) {
    // Plotly writes 2026-01-31 10:20:30.5, in UTC as it was given.
    const number = (end) =>
      axis.value === "time"
        ? Date.parse(`${String(end).replace(" ", "T").padEnd(19, ":00")}Z`) / 1000
        : Math.round(end);
    setView(Math.max(0, number(from)), Math.max(0, number(to)));
  } else if (change["xaxis.autorange"]) setView(null, null);
}

function setView(first, last) {
  if (first === view.first && last === view.last) return;
  if (Number.isNaN(first) || Number.isNaN(last)) return;
  Object.assign(view, { first, last });
  const url = new URL(location.href);
  for (const [name, value] of [
    ["machine", axis.value === "step" ? "step" : null],
    ["first", first],
    ["last", last],
  ])
    if (value === null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  history.replaceState(history.state, "", url);
  reset.hidden = first === null;
  askAll();
}

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries)
      charts.get(target).isVisible = isIntersecting;
    draw();
    if (isOwed) askNewer();
  },
  { rootMargin: "200px" },
);
for (const element of root.querySelectorAll("[data-system-chart]")) {
  const figure = figures[element.dataset.systemChart];
  charts.set(element, { figure, isVisible: false, isStale: true });
  watcher.observe(element);
}

if (axis) {
  reset.hidden = view.first === null;
  axis.addEventListener("change", () => {
    view.first = Number.NaN; // another axis begins with all of it
    setView(null, null);
  });
  reset.addEventListener("click", () => setView(null, null));
  document.addEventListener("themechange", show);
  document.addEventListener("visibilitychange", () => {
    draw(); // what came, or another theme, while no one looked
    askNewer();
  });
  setInterval(askNewer, ASK_EVERY);
  const near = new IntersectionObserver(
    ([{ isIntersecting }]) => {
      isNear = isIntersecting;
      if (isNear) askNewer();
    },
    { rootMargin: "400px" },
  );
  near.observe(root);
}
