// A prompt's learning curve; redrawn when the theme changes.
import { CONFIG, readColors, styleCard, paint } from "../charts/theme.js";

const source = document.getElementById("prompt-figures");
const figures = source ? JSON.parse(source.textContent) : {};

function draw() {
  const read = readColors();
  for (const plot of document.querySelectorAll("[data-figure]")) {
    const { data, layout } = figures[plot.dataset.figure];
    const traces = data.map((trace) => paint(trace, read));
    const isFirst = !plot.classList.contains("js-plotly-plot");
    window.Plotly.react(plot, traces, styleCard(layout, read), CONFIG);
    if (isFirst) plot.on("plotly_click", ({ points: [point] }) => open(point));
  }
}

function open({ customdata: step }) {
  const { groups, prompt } = document.querySelector("[data-groups]").dataset;
  location.assign(`${groups}${step}/${prompt}/`);
}

document.addEventListener("themechange", draw);
draw();
