// All charts of a page: visibility, staleness and scheduling of redraws.

import { titleOf } from "./alert_marks.js";
import { fillFigure, hasPoints, metricsOf } from "./figure.js";
import { showLegend, withoutLegend } from "./legend.js";
import { CONFIG, readColors } from "./theme.js";
import { makeRange } from "./view.js";
import { ALL, openWindow } from "./window.js";
import { widen } from "./closeups.js";
import { slice } from "../live/thinning.js";

const DOUBLE_CLICK = 300; // ms, as in Plotly
const BUDGET = 40; // ms of drawing between two paints
const MAX_PLOTS = 30; // drawn at once; above this, those out of view longest are purged
const FINGERS = window.matchMedia("(pointer: coarse)");
const PLOT_CONFIG = { ...CONFIG, doubleClick: false };

export class Board {
  #charts = new Map(); // element -> { id, figure, isVisible, drawn, seen, theme }
  #revision = 0;
  #theme = 0; // number of theme changes
  #frame = null;
  #click = null;
  #lastDouble = Number.NEGATIVE_INFINITY;
  #isEchoed = false;

  constructor({
    root,
    figures = {},
    store,
    view,
    closeups,
    parents, // of a fork
    alerts = () => [], // of the run, as the server lists them
    onPoint,
    onZoom = () => {},
  }) {
    Object.assign(this, { store, view, closeups, parents, alerts, onPoint, onZoom });
    this.name = root.dataset.name;
    this.watcher = new IntersectionObserver((entries) => this.#see(entries), {
      rootMargin: "200px",
    });
    for (const element of root.querySelectorAll("[data-chart]")) {
      const figure = figures[element.dataset.chart];
      if (figure) this.add(element, figure);
    }
    document.addEventListener("themechange", () => {
      this.#theme += 1;
      this.refresh();
    });
    document.addEventListener("visibilitychange", () => this.#schedule());
    window.addEventListener("beforeprint", () => this.#drawAll());
  }

  add(element, figure) {
    const id = element.dataset.chart;
    const hidden = new Set(); // names of lines
    const state = { isVisible: false, drawn: -1, seen: 0, theme: 0 };
    const chart = { id, figure, hidden, ...state };
    this.#charts.set(element, chart);
    this.watcher.observe(element);
  }

  // The data of charts has changed.
  refresh() {
    this.#revision += 1;
    this.#schedule();
  }

  // A chart's current data and layout, drawn or not.
  fill(element) {
    const { store, view, closeups } = this;
    return this.#fill(element, openWindow({ store, closeups, range: view.range }));
  }

  // The same with every step, for downloads.
  async fillWhole(element) {
    const { store, view, closeups } = this;
    const { figure } = this.#charts.get(element);
    const wide = view.range ? widen(view.range) : ALL;
    const found = await closeups.readAll(metricsOf(figure, store), wide);
    return this.#fill(element, (metric) => {
      const curve = found.get(metric) ?? store.get(metric);
      return curve && slice(curve, wide.first, wide.last);
    });
  }

  #fill(element, curveOf) {
    const chart = this.#charts.get(element);
    const { store, view, parents } = this;
    const read = readColors();
    const revision = this.#revision;
    return fillFigure(chart.figure, {
      parents,
      alerts: this.alerts(),
      store,
      view,
      read,
      revision,
      curveOf,
      id: chart.id,
    });
  }

  title(element) {
    return this.#charts.get(element).figure.layout.title.text;
  }

  #see(entries) {
    for (const { target, isIntersecting } of entries) {
      const chart = this.#charts.get(target);
      chart.isVisible = isIntersecting;
      chart.seen = performance.now();
    }
    this.#schedule();
  }

  // Many frames between two paints cost one drawing, and a hidden page none.
  #schedule() {
    if (this.#frame !== null || document.hidden) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = null;
      const visible = [...this.#charts].filter(([, chart]) => chart.isVisible);
      this.#ask(visible);
      // The stalest first, since values may arrive faster than charts are drawn.
      visible.sort(([, a], [, b]) => a.drawn - b.drawn);
      const until = performance.now() + BUDGET;
      // After a theme change, also drawn charts that are out of view.
      const outdated = [...this.#charts].filter(
        ([element, chart]) =>
          !chart.isVisible && chart.theme !== this.#theme && isPlot(element),
      );
      for (const [element, chart] of [...visible, ...outdated]) {
        if (chart.drawn === this.#revision) continue;
        this.#draw(element, chart);
        // Paint these before drawing the others.
        if (performance.now() > until) return this.#schedule();
      }
      this.#clear();
    });
  }

  #ask(visible) {
    const { store, closeups, parents, view } = this;
    if (store.attempt === null) return;
    const metrics = visible.flatMap(([, { figure }]) => metricsOf(figure, store));
    const names = [...new Set(metrics)];
    closeups?.need(names, view.range);
    parents?.load(names);
  }

  // All charts are visible in print.
  #drawAll() {
    for (const [element, chart] of this.#charts)
      if (chart.drawn !== this.#revision && !element.closest("[hidden]"))
        this.#draw(element, chart);
  }

  #clear() {
    const unseen = [...this.#charts].filter(
      ([element, chart]) => !chart.isVisible && isPlot(element),
    );
    const plots = [...this.#charts.keys()].filter(isPlot).length;
    unseen.sort(([, a], [, b]) => a.seen - b.seen);
    for (const [element, chart] of unseen.slice(0, Math.max(0, plots - MAX_PLOTS))) {
      window.Plotly.purge(element);
      element.classList.remove("js-plotly-plot");
      chart.drawn = -1;
    }
  }

  // Charts that were not loaded yet may have values.
  #sayEmpty(element, { figure }) {
    const { store } = this;
    if (store.attempt === null) return;
    if (metricsOf(figure, store).some((metric) => store.lacking.has(metric))) return;
    const waiting = element.querySelector(".chart-waiting");
    if (waiting) waiting.textContent = store.isLive ? "No values yet" : "No values";
  }

  #draw(element, chart) {
    const { data, layout, notes, hasBeyond, axis, alerts } = this.fill(element);
    chart.drawn = this.#revision;
    chart.theme = this.#theme;
    chart.axis = axis;
    const card = element.closest(".chart");
    const isFilled = hasPoints(data);
    const isFirst = !isPlot(element);
    // A range without points clears the chart.
    if (!isFilled && (isFirst || !this.view.range)) {
      if (isFirst) this.#sayEmpty(element, chart);
      return;
    }
    card.querySelector("[data-chart-actions]").hidden = false;
    const note = card.querySelector("[data-chart-note]");
    if (note && note.title !== notes.join("; "))
      note.title = note.textContent = notes.join("; ");
    card.classList.toggle("is-noted", hasBeyond); // clipped values
    listAlerts(card.querySelector("[data-chart-alerts]"), alerts);
    if (isFirst) element.replaceChildren();
    const dragmode = FINGERS.matches ? false : "zoom"; // fingers scroll the page
    const { hidden } = chart;
    showLegend(element, { data, layout }, hidden, () => this.#draw(element, chart));
    const drawn = withoutLegend({ data, layout: { ...layout, dragmode } }, hidden);
    window.Plotly.react(element, drawn.data, drawn.layout, PLOT_CONFIG);
    if (isFirst) this.#listen(element, chart);
    if (!performance.getEntriesByName("first-chart").length)
      requestAnimationFrame(() => performance.mark("first-chart"));
  }

  #listen(element, chart) {
    element.on("plotly_click", ({ points }) => this.#clickOn(points));
    element.on("plotly_clickannotation", ({ annotation }) => {
      if (annotation.captureevents) location.assign(annotation.name);
    });
    element.on("plotly_doubleclick", () => {
      this.#lastDouble = performance.now();
      clearTimeout(this.#click);
      this.onZoom(null);
    });
    element.on("plotly_relayout", (change) => this.#zoom(change, chart));
    element.on("plotly_hover", ({ xvals, points }) => {
      this.#echo(element, xvals?.[0] ?? points[0]?.x);
    });
    element.on("plotly_unhover", () => this.#echo(element, null));
  }

  // A double click resets the range instead.
  #clickOn(points) {
    const step = points.find((point) => point.customdata !== undefined)?.customdata;
    // Plotly dispatches the second click after the double click.
    if (step === undefined || performance.now() - this.#lastDouble < DOUBLE_CLICK)
      return;
    clearTimeout(this.#click);
    this.#click = setTimeout(() => this.onPoint(step), DOUBLE_CLICK);
  }

  #zoom(change, { axis }) {
    const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (from === undefined || to === undefined) return;
    clearTimeout(this.#click);
    this.#echo(null, null); // remove synchronized hovers
    this.onZoom(makeRange(axis.stepAt(from), axis.stepAt(to)));
  }

  // Show the hover in the other visible charts, without echoing theirs.
  #echo(source, x) {
    if (this.#isEchoed) return;
    this.#isEchoed = true;
    for (const [element, { isVisible }] of this.#charts) {
      if (element === source || !isVisible || !isPlot(element)) continue;
      if (x === null || x === undefined) window.Plotly.Fx.unhover(element, {});
      else window.Plotly.Fx.hover(element, { xval: x }, "xy");
    }
    this.#isEchoed = false;
  }
}

// The marks of a chart as links, for keyboard and screen reader.
function listAlerts(list, alerts) {
  const titles = alerts.map(titleOf);
  const known = [...list.children].map((link) => link.textContent);
  if (titles.join("\n") === known.join("\n")) return;
  list.replaceChildren(
    ...alerts.map((alert, i) => {
      const link = document.createElement("a");
      link.className = "chart-menu-item";
      link.href = alert.url;
      link.textContent = titles[i];
      return link;
    }),
  );
}

function isPlot(element) {
  return element.classList.contains("js-plotly-plot");
}
