// Draws the histograms, again when the theme changes and when htmx loads new results.
import { CONFIG, readColors, resolveColors, styleLayout } from "../charts/theme.js";

function decorate(axis, colors) {
  const font = { size: 12, color: colors.title.color };
  const title = { text: axis.title.text, font, standoff: 8 };
  return { ...colors.axis, automargin: true, ...axis, title };
}

function draw() {
  const source = document.getElementById("statistics-figures");
  if (!source) return;
  const figures = JSON.parse(source.textContent);
  const read = readColors();
  for (const plot of document.querySelectorAll("[data-figure]")) {
    const figure = figures[plot.dataset.figure];
    const layout = {
      ...styleLayout(resolveColors(figure.layout, read), read, decorate),
      margin: { l: 56, r: 12, t: 8, b: 40 },
    };
    window.Plotly.react(plot, resolveColors(figure.data, read), layout, CONFIG);
  }
}

document.addEventListener("themechange", draw);
document.addEventListener("htmx:afterSettle", draw);
draw();
