// Small charts of the same runs: one x axis, one hover line, the values under it.
import { sig3 } from "../live/numbers.js";
import { CONFIG, readColors, resolveColors, styleLayout, withAlpha } from "./theme.js";

const FINGERS = window.matchMedia("(pointer: coarse)");
const MAX_READ = 6; // sets whose values are written beside a title
const MARGIN = { l: 44, r: 8, t: 6, b: 24 };

export class SmallMultiples {
  #charts = new Map(); // element -> its data
  #range = null;
  #isMoving = false;

  constructor(root, { onPoint }) {
    this.root = root;
    this.onPoint = onPoint;
    document.addEventListener("themechange", () => this.#drawAll());
  }

  draw(charts) {
    const byMetric = new Map(charts.map((chart) => [chart.metric, chart.data]));
    for (const element of this.root.querySelectorAll("[data-small-plot]"))
      this.#charts.set(element, byMetric.get(element.dataset.smallPlot) ?? []);
    this.#drawAll();
  }

  #drawAll() {
    const read = readColors();
    for (const [element, data] of this.#charts) {
      const isEmpty = !data.some((trace) => trace.x.length);
      element.classList.toggle("is-empty", isEmpty);
      if (isEmpty && !element.classList.contains("js-plotly-plot")) continue;
      this.#drawOne(element, data, read);
    }
  }

  #drawOne(element, data, read) {
    const isFirst = !element.classList.contains("js-plotly-plot");
    const traces = data.map((trace) => paint(trace, read));
    window.Plotly.react(element, traces, this.#layOut(read), {
      ...CONFIG,
      doubleClick: false,
    });
    if (!isFirst) return;
    const line = document.createElement("div");
    line.className = "small-line position-absolute";
    line.hidden = true;
    element.append(line);
    element.on("plotly_hover", ({ points }) => this.#point(points[0]?.x));
    element.on("plotly_unhover", () => this.#point(null));
    element.on("plotly_click", ({ points: [point] }) => this.onPoint(point));
    element.on("plotly_doubleclick", () => this.#zoom(null));
    element.on("plotly_relayout", (change) => {
      const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range[0] !== undefined) this.#zoom(range);
    });
  }

  #layOut(read) {
    const { axis, log } = this.root.dataset;
    const decorate = (own, colors) => ({
      ...colors.axis,
      ...own,
      tickfont: { ...colors.axis.tickfont, size: 11 },
    });
    const xaxis = { nticks: 5, exponentformat: "SI", showspikes: false };
    const range = this.#range ?? this.#spanOf();
    if (range) Object.assign(xaxis, { range, autorange: false });
    if (axis === "step") xaxis.tickformat = "~s";
    const yaxis = {
      nticks: 4,
      exponentformat: "e",
      fixedrange: true,
      showspikes: false,
    };
    if (log) yaxis.type = "log";
    const layout = { xaxis, yaxis, hovermode: "x", showlegend: false };
    return {
      ...styleLayout(layout, read, decorate),
      margin: MARGIN,
      dragmode: FINGERS.matches ? false : "zoom", // fingers scroll the page
    };
  }

  // Of all charts together.
  #spanOf() {
    let [first, last] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    for (const data of this.#charts.values())
      for (const { x } of data) {
        if (x.length === 0) continue;
        first = Math.min(first, x[0]);
        last = Math.max(last, x.at(-1));
      }
    if (first > last) return null;
    const room = (last - first || 1) * 0.02;
    return [first - room, last + room];
  }

  // All charts show the same part of the axis.
  #zoom(range) {
    if (this.#isMoving) return;
    this.#isMoving = true;
    this.#range = range;
    this.#point(null);
    this.#drawAll();
    this.#isMoving = false;
  }

  #point(x) {
    for (const [element, data] of this.#charts) {
      const line = element.querySelector(".small-line");
      if (!line) continue;
      const isHidden = x === null || x === undefined;
      line.hidden = isHidden;
      const readout = element.closest("figure").querySelector("[data-readout]");
      readout.replaceChildren();
      if (isHidden) continue;
      const { xaxis } = element._fullLayout;
      const left = xaxis._offset + xaxis.d2p(x);
      line.style.transform = `translateX(${left}px)`;
      readout.append(...this.#readAt(data, x));
    }
  }

  #readAt(data, x) {
    const lines = data.filter((trace) => trace.meta?.run && trace.x.length);
    const position = document.createElement("span");
    const unit = this.root.dataset.axis === "step" ? "step " : "";
    position.textContent = unit + Number(Number(x).toPrecision(4)).toLocaleString("en");
    if (lines.length > MAX_READ) return [position];
    const read = readColors();
    const values = lines.map((trace) => {
      const value = document.createElement("span");
      value.textContent = sig3(trace.y[nearest(trace.x, x)]);
      value.style.color = resolveColors(trace.line.color, read);
      return value;
    });
    return [position, ...values];
  }
}

function paint(trace, read) {
  const colored = resolveColors(trace, read);
  const { alpha } = trace.meta ?? {};
  if (alpha !== undefined) colored.fillcolor = withAlpha(colored.fillcolor, alpha);
  // Values stand beside the title; boxes would cover a small chart.
  if (trace.hoverinfo !== "skip") colored.hoverinfo = "none";
  delete colored.hovertemplate;
  return colored;
}

function nearest(xs, x) {
  let best = 0;
  for (let i = 1; i < xs.length; i += 1)
    if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
  return best;
}
