// Draws the figures of a page on their cards, and redraws on theme changes. Those in a
// closed <details> are drawn when it opens: hidden, they have no size.
import { CONFIG, readColors, paint, resolveColors, styleCard } from "./theme.js";

// `onClick` receives the plot and the point.
export function drawCards(source, onClick) {
  const figures = JSON.parse(document.getElementById(source).textContent);
  const plots = [...document.querySelectorAll("[data-figure]")];

  function draw(plot) {
    const { data, layout } = figures[plot.dataset.figure];
    const read = readColors();
    const isFirst = !plot.classList.contains("js-plotly-plot");
    window.Plotly.react(
      plot,
      data.map((trace) => paint(trace, read)),
      styleCard(resolveColors(layout, read), read),
      CONFIG,
    );
    if (isFirst) {
      plot.on("plotly_click", ({ points: [point] }) => onClick(plot, point));
    }
  }

  const isHidden = (plot) => plot.closest("details:not([open])") !== null;
  const drawAll = () => plots.filter((plot) => !isHidden(plot)).forEach(draw);
  for (const plot of plots)
    plot.closest("details")?.addEventListener("toggle", () => {
      if (!isHidden(plot)) draw(plot);
    });
  document.addEventListener("themechange", drawAll);
  drawAll();
}
