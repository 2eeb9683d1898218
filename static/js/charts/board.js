// All charts of a page: which are in view, which are stale, when they are drawn.

import { asCsv, savePng, saveText } from "./download.js";
import { fillFigure, hasPoints } from "./figure.js";
import { CONFIG, readColors } from "./theme.js";

// Safari has no requestIdleCallback.
const whenIdle = window.requestIdleCallback ?? ((task) => setTimeout(task, 50));

export class Board {
  #charts = new Map(); // element -> { figure, isVisible, drawn }
  #revision = 0;
  #frame = null;

  constructor({ root, figures, store, view, onPoint }) {
    this.store = store;
    this.view = view;
    this.name = root.dataset.name;
    this.onPoint = onPoint;
    const watcher = new IntersectionObserver((entries) => this.#see(entries), {
      rootMargin: "200px",
    });
    for (const element of root.querySelectorAll("[data-chart]")) {
      const figure = figures[element.dataset.chart];
      this.#charts.set(element, { figure, isVisible: false, drawn: -1 });
      watcher.observe(element);
    }
    root.addEventListener("click", (event) => this.#download(event));
    document.addEventListener("themechange", () => this.refresh());
    document.addEventListener("visibilitychange", () => this.#schedule());
  }

  // Something that charts show has changed.
  refresh() {
    this.#revision += 1;
    this.#schedule();
  }

  #see(entries) {
    for (const { target, isIntersecting } of entries)
      this.#charts.get(target).isVisible = isIntersecting;
    this.#schedule();
  }

  // Many frames between two paints cost one drawing, and a hidden page none.
  #schedule() {
    if (this.#frame !== null || document.hidden) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = null;
      for (const [element, chart] of this.#charts)
        if (chart.isVisible && chart.drawn !== this.#revision)
          this.#draw(element, chart);
      whenIdle(() => this.#drawNextUnseen());
    });
  }

  // A chart out of view is drawn once too, so that it is there when it is scrolled to
  // or printed; from then on it waits until it is seen.
  #drawNextUnseen() {
    for (const [element, chart] of this.#charts) {
      if (isPlot(element) || chart.drawn === this.#revision) continue;
      this.#draw(element, chart);
      whenIdle(() => this.#drawNextUnseen());
      return;
    }
  }

  #fill(chart) {
    const { store, view } = this;
    const read = readColors();
    const revision = this.#revision;
    return fillFigure(chart.figure, { store, view, read, revision });
  }

  #draw(element, chart) {
    const { data, layout } = this.#fill(chart);
    chart.drawn = this.#revision;
    const isFilled = hasPoints(data);
    element.parentElement.querySelector("[data-chart-actions]").hidden = !isFilled;
    if (!isFilled) return;
    // A chart that not every run fills shows up with its first value.
    element.closest(".chart").hidden = false;
    const isFirst = !isPlot(element);
    if (isFirst) element.replaceChildren();
    window.Plotly.react(element, data, layout, CONFIG);
    if (isFirst) element.on("plotly_click", ({ points }) => this.#click(points));
  }

  #click(points) {
    const step = points.find((point) => point.customdata !== undefined)?.customdata;
    if (step !== undefined) this.onPoint(step);
  }

  #download(event) {
    const button = event.target.closest("[data-download]");
    if (!button) return;
    const element = button.closest(".chart").querySelector("[data-chart]");
    const chart = this.#charts.get(element);
    const title = chart.figure.layout.title.text;
    const name = `${this.name}-${element.dataset.chart}`;
    if (button.dataset.download === "png")
      savePng(element, { name, title: `${this.name}: ${title}` });
    else saveText(`${name}.csv`, asCsv(this.#fill(chart).data));
  }
}

function isPlot(element) {
  return element.classList.contains("js-plotly-plot");
}
