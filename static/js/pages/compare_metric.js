// One metric of a comparison: drawn from the page, fetched again when a control changes.
import { asCsv, savePicture, saveText } from "../charts/download.js";
import {
  CONFIG,
  readColors,
  resolveColors,
  styleLayout,
  paint,
} from "../charts/theme.js";

const form = document.querySelector("[data-curve-form]");
const plot = document.querySelector("[data-curve-plot]");
const differencePlot = document.querySelector("[data-difference-plot]");
const status = document.querySelector("[data-curve-status]");
const output = form.querySelector("[data-smooth-output]");
const read = (id) => JSON.parse(document.getElementById(id)?.textContent ?? "null");
let figure = read("compare-figure");
let differences = read("compare-differences");
let newest = 0;

function decorate(axis, colors) {
  const font = { size: 12, color: colors.title.color };
  const title = { text: axis.title.text, font, standoff: 8 };
  return { ...colors.axis, automargin: true, ...axis, title };
}

function layOut(layout, readColor) {
  const margin = { l: 52, r: 12, t: 8, b: 40 };
  const styled = styleLayout(layout, readColor, decorate);
  return { ...resolveColors(styled, readColor), margin };
}

function drawOne(element, { data, layout }) {
  const readColor = readColors();
  const traces = data.map((trace) => paint(trace, readColor));
  window.Plotly.react(element, traces, layOut(layout, readColor), CONFIG);
}

function draw() {
  const points = figure.data.some((trace) => trace.x?.length);
  plot.classList.toggle("is-empty", !points);
  status.textContent = points ? "" : `No run here has values of ${metric()} yet.`;
  const isFirst = !plot.classList.contains("js-plotly-plot");
  drawOne(plot, figure);
  if (isFirst) plot.on("plotly_click", ({ points: [point] }) => openGroups(point));
  if (!differencePlot) return;
  const some = differences?.data.some((trace) => trace.x.length);
  differencePlot.classList.toggle("is-empty", !some);
  if (differences) drawOne(differencePlot, differences);
}

const metric = () => form.elements.metric.value;

// A click on a point opens that run's groups at that step.
function openGroups(point) {
  const link = document.querySelector(`[data-run="${point.data.meta?.run}"]`);
  const step = point.customdata;
  if (link && step !== undefined)
    location.assign(`${link.pathname}groups/?step=${step}`);
}

function currentQuery() {
  const query = new URLSearchParams(new FormData(form));
  if (!query.get("window")) query.delete("window");
  // The metric's own direction is left out, so that it follows the metric.
  if (form.elements.better.dataset.declared !== undefined) query.delete("better");
  return query;
}

function show(answer) {
  const { notes, contrasts, better } = answer;
  figure = answer;
  differences = answer.differences;
  document.querySelector("[data-curve-notes]").innerHTML = notes;
  document.querySelector("[data-contrasts]").innerHTML = contrasts;
  form.elements.better.value = better;
  draw();
}

async function load() {
  const turn = ++newest;
  const query = currentQuery();
  history.replaceState(null, "", `?${query}${location.hash}`);
  try {
    const response = await fetch(`${plot.dataset.source}?${query}`);
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    const answer = await response.json();
    // Only the response to the newest request is drawn.
    if (turn === newest) show(answer);
  } catch (error) {
    if (turn === newest)
      status.textContent = `Loading the curves failed: ${error.message}. Reload the page.`;
  }
}

let waiting;
for (const element of form.elements) {
  element.addEventListener("input", () => {
    if (element.name === "smooth") output.textContent = element.value;
    if (element.name === "better") delete element.dataset.declared;
    clearTimeout(waiting);
    waiting = setTimeout(load, 150);
  });
}
form.addEventListener("submit", (event) => {
  event.preventDefault();
  load();
});

document.querySelector("[data-curve-actions]").addEventListener("click", (event) => {
  const kind = event.target.dataset.download;
  const name = `compare-${metric().replaceAll("/", "-")}`;
  if (kind === "png") savePicture(plot, { name, title: metric() });
  // Bands have positions on their axis, single runs have steps.
  const at = plot.classList.contains("has-strip")
    ? figure.layout.xaxis.title.text
    : "step";
  if (kind === "csv") saveText(`${name}.csv`, asCsv(figure.data, at));
});
document.addEventListener("themechange", draw);
draw();
