// Draws a rescoring's charts from the page's figures; a click opens what a point is of.
import { CONFIG, readColors, resolveColors, styleCard } from "../charts/theme.js";

const figures = JSON.parse(document.getElementById("rescoring-figures").textContent);
const plots = [...document.querySelectorAll("[data-figure]")];

function draw(plot) {
  const { data, layout } = figures[plot.dataset.figure];
  const read = readColors();
  const isFirst = !plot.classList.contains("js-plotly-plot");
  window.Plotly.react(
    plot,
    resolveColors(data, read),
    styleCard(resolveColors(layout, read), read),
    CONFIG,
  );
  if (isFirst) plot.on("plotly_click", ({ points: [point] }) => open(plot, point));
}

function open(plot, { customdata, x }) {
  const groups = plot.dataset.groups;
  if (customdata) {
    const [step, prompt, position] = customdata;
    location.assign(`${groups}${step}/${prompt}/#completion-${position}`);
  } else if (plot.dataset.figure === "means") {
    location.assign(`${groups}?step=${x}`);
  }
}

function drawAll() {
  plots.forEach(draw);
}

document.addEventListener("themechange", drawAll);
drawAll();
