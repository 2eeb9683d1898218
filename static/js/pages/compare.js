// Overlaid curves: drawn from the page's figure, fetched anew when a control changes.
import { asCsv, savePicture, saveText } from "../charts/download.js";
import { CONFIG, readColors, resolveColors, styleLayout } from "../charts/theme.js";

const form = document.querySelector("[data-curve-form]");
const plot = document.querySelector("[data-curve-plot]");
const status = document.querySelector("[data-curve-status]");
const output = form.querySelector("[data-smooth-output]");
let figure = JSON.parse(document.getElementById("compare-figure").textContent);
let newest = 0;

function decorate(axis, colors) {
  const font = { size: 12, color: colors.title.color };
  const title = { text: axis.title.text, font, standoff: 8 };
  return { ...colors.axis, automargin: true, ...axis, title };
}

function layOut(layout, read) {
  const margin = { l: 52, r: 12, t: 8, b: 40 };
  return { ...styleLayout(layout, read, decorate), margin };
}

function draw() {
  const points = figure.data.some((trace) => trace.x?.length);
  plot.classList.toggle("is-empty", !points);
  status.textContent = points ? "" : `No run here has values of ${metric()} yet.`;
  const read = readColors();
  const isFirst = !plot.classList.contains("js-plotly-plot");
  window.Plotly.react(
    plot,
    resolveColors(figure.data, read),
    layOut(figure.layout, read),
    CONFIG,
  );
  if (isFirst) plot.on("plotly_click", ({ points: [point] }) => openGroups(point));
}

const metric = () => form.elements.metric.value;

// A click on a point opens that run's groups at that step.
function openGroups(point) {
  const link = document.querySelector(`[data-run="${point.data.meta?.run}"]`);
  const step = point.customdata;
  if (link && step !== undefined)
    location.assign(`${link.pathname}groups/?step=${step}`);
}

async function load() {
  const turn = ++newest;
  const query = new URLSearchParams(new FormData(form));
  history.replaceState(null, "", `?${query}${location.hash}`);
  try {
    const response = await fetch(`${plot.dataset.source}?${query}`);
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    const answer = await response.json();
    // The slider moves faster than answers come; only the newest is drawn.
    if (turn !== newest) return;
    figure = answer;
    draw();
  } catch (error) {
    if (turn === newest)
      status.textContent = `The curves could not be read (${error.message}). Reload the page to try again.`;
  }
}

// As many as can be compared: the others wait until one is given up.
const choices = document.querySelector("[data-choices]");

function countChoices() {
  const boxes = [...choices.querySelectorAll("[name=runs][type=checkbox]")];
  const most = Number(choices.dataset.most);
  const count = boxes.filter((box) => box.checked).length;
  for (const box of boxes) box.disabled = !box.checked && count >= most;
  const said = choices.querySelector("[data-choices-said]");
  said.textContent = `${count} of at most ${most} chosen`;
  choices.querySelector("button").disabled = count === 0;
}

if (choices) {
  choices.addEventListener("change", countChoices);
  countChoices();
}

let waiting;
form.addEventListener("input", (event) => {
  if (event.target.name === "smooth") output.textContent = event.target.value;
  clearTimeout(waiting);
  waiting = setTimeout(load, 150);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  load();
});
form.querySelector("[data-without-script]").hidden = true;

document.querySelector("[data-curve-actions]").addEventListener("click", (event) => {
  const kind = event.target.dataset.download;
  const name = `compare-${metric().replaceAll("/", "-")}`;
  if (kind === "png") savePicture(plot, { name, title: metric() });
  if (kind === "csv") saveText(`${name}.csv`, asCsv(figure.data));
});
document.addEventListener("themechange", draw);
draw();
