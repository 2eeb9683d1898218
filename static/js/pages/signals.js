// The signal charts of a run, with live updates.

import { fillAnatomy } from "../charts/signals/anatomy.js";
import { fillDistribution } from "../charts/signals/distribution.js";
import { fillMap, placeOf } from "../charts/signals/map.js";
import { fillPasses } from "../charts/signals/passes.js";
import { fillRules } from "../charts/signals/rules.js";
import { showLegend, withoutLegend } from "../charts/legend.js";
import { CONFIG, readColors } from "../charts/theme.js";
import { makeRange } from "../charts/view.js";
import { setText } from "../live/announce.js";

const FILL = {
  map: fillMap,
  rewards: fillDistribution,
  advantages: fillDistribution,
  mean: fillRules,
  variance: fillRules,
  passes: fillPasses,
  anatomy: fillAnatomy,
};
// Minimum interval between requests; longer for slow responses.
const LOAD_EVERY = 2_000;
const REST_FACTOR = 20;
const TRY_AGAIN_AFTER = 5_000;

const root = document.querySelector("[data-signals]");
const figures = JSON.parse(document.getElementById("signal-figures").textContent);
const rows = root.querySelector("[data-map-rows]");
const passK = root.querySelector("[data-pass-k]");
const FINGERS = window.matchMedia("(pointer: coarse)");
let revision = 0;
let hasEnded = false;
let range = null; // of steps, common to all charts of the page
let zoom = () => {};

// The data of one URL, and its charts.
class Source {
  charts = [];
  answer = null;
  isStale = true;
  #notBefore = 0;
  #timer = null;
  #isLoading = false;

  constructor(name) {
    this.name = name;
  }

  get isVisible() {
    return this.charts.some((chart) => chart.isVisible);
  }

  // Loads new data; `isUrgent`: a user action needs it.
  refresh({ isUrgent = false } = {}) {
    this.isStale = true;
    if (isUrgent) this.#notBefore = 0;
    this.schedule();
  }

  schedule() {
    if (!this.isStale || !this.isVisible || document.hidden || this.#isLoading) return;
    clearTimeout(this.#timer);
    const wait = Math.max(0, this.#notBefore - performance.now());
    this.#timer = setTimeout(() => this.#load(), wait);
  }

  async #load() {
    this.#isLoading = true;
    this.isStale = false;
    const begin = performance.now();
    const query = queryOf();
    const answer = await ask(
      root.dataset.signals.replace("map.json", `${this.name}.json`),
      query,
    );
    const taken = performance.now() - begin;
    this.#isLoading = false;
    this.#notBefore = performance.now() + Math.max(LOAD_EVERY, REST_FACTOR * taken);
    // The view may have changed meanwhile.
    if (query !== queryOf()) this.refresh({ isUrgent: true });
    else if (answer) {
      this.answer = answer;
      for (const chart of this.charts) chart.draw();
      this.schedule();
    } else {
      this.#notBefore = performance.now() + TRY_AGAIN_AFTER;
      this.refresh();
    }
  }
}

async function ask(address, query) {
  try {
    const answer = await fetch(`${address}?${query}`);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

class Chart {
  isVisible = false;
  #hidden = new Set(); // names of lines
  #filled = null;
  #drawn = null; // the drawn data

  constructor(element, source) {
    this.element = element;
    this.card = element.closest(".chart");
    this.id = element.dataset.signalChart;
    this.source = source;
    this.table = this.card.querySelector("details");
    this.table.addEventListener("toggle", () => this.#tabulate());
    source.charts.push(this);
  }

  // Data that arrived out of view is drawn when the chart becomes visible.
  show() {
    if (this.#drawn !== this.source.answer) this.draw();
  }

  draw() {
    const { answer } = this.source;
    this.#drawn = null;
    if (!answer || document.hidden) return;
    revision += 1;
    const read = readColors();
    const query = queryOf();
    const k = chosenK();
    const options = { read, revision, query, chart: this.id, order: rows.value, k };
    this.#filled = FILL[this.id](figures[this.id], answer, options);
    const { data, layout, isEmpty, note } = this.#filled;
    setText(this.card.querySelector("[data-signal-note]"), note);
    if (this.id === "passes") offerK(this.#filled.largest);
    this.table.hidden = isEmpty;
    this.#tabulate();
    if (!this.isVisible) return;
    this.#drawn = answer;
    if (isEmpty) this.#empty();
    else this.#plot(data, layout);
  }

  #plot(data, layout) {
    const isFirst = !this.element.classList.contains("js-plotly-plot");
    if (isFirst) this.element.replaceChildren();
    const dragmode = FINGERS.matches ? false : "zoom"; // fingers scroll the page
    const filled = { data, layout: { ...layout, dragmode } };
    showLegend(this.element, filled, this.#hidden, () => this.draw());
    const drawn = withoutLegend(filled, this.#hidden);
    window.Plotly.react(this.element, drawn.data, drawn.layout, CONFIG);
    if (!isFirst) return;
    this.element.on("plotly_click", ({ points }) => this.#open(points[0]));
    this.element.on("plotly_relayout", (change) => followZoom(change));
  }

  #empty() {
    if (this.element.classList.contains("js-plotly-plot"))
      window.Plotly.purge(this.element);
    const text = document.createElement("p");
    text.className = "chart-waiting";
    text.textContent = hasEnded ? "No values" : "No values yet";
    this.element.replaceChildren(text);
  }

  #open(point) {
    const { answer } = this.source;
    const place =
      this.id === "map"
        ? placeOf(point, this.#filled, answer)
        : { step: this.#stepAt(point.x) };
    if (place) location.assign(addressOf(place));
  }

  #stepAt(x) {
    const { columns } = this.source.answer;
    return columns.find(({ first, last }) => x >= first - 0.5 && x <= last + 0.5)?.last;
  }

  // The chart as a table; filled when it is open.
  #tabulate() {
    if (!this.table.open || !this.#filled) return;
    const { head, rows } = this.#filled.table;
    const table = this.table.querySelector("table");
    table.tHead.replaceChildren(
      makeRow(head.map((text, i) => makeCell("th", text, i))),
    );
    table.tBodies[0].replaceChildren(
      ...rows.toReversed().map(({ step, cells }) => {
        const link = document.createElement("a");
        link.href = addressOf({ step });
        link.textContent = cells[0];
        const first = document.createElement("th");
        first.scope = "row";
        first.append(link);
        return makeRow([
          first,
          ...cells.slice(1).map((text) => makeCell("td", text, 1)),
        ]);
      }),
    );
  }
}

function makeRow(cells) {
  const row = document.createElement("tr");
  row.append(...cells);
  return row;
}

function makeCell(kind, text, column) {
  const cell = document.createElement(kind);
  // Names are escaped for Plotly.
  cell.textContent = text.replaceAll("&lt;", "<").replaceAll("&amp;", "&");
  if (kind === "th") cell.scope = "col";
  if (column > 0) cell.className = "number";
  return cell;
}

function addressOf({ step, prompt }) {
  const { groups } = root.dataset;
  return prompt === undefined
    ? `${groups}?step=${step}`
    : `${groups}${step}/${prompt}/`;
}

// The URL contains the view, so links show the same.
function queryOf() {
  const query = new URLSearchParams();
  query.set("rows", rows.value);
  if (range) {
    query.set("first_step", range.first);
    query.set("last_step", range.last);
  }
  return query.toString();
}

function keepInAddress(name, value) {
  const url = new URL(location.href);
  if (value === null) url.searchParams.delete(name);
  else url.searchParams.set(name, value);
  history.replaceState(history.state, "", url);
}

// k of pass@k from the URL; null: the group size.
function chosenK() {
  const k = Number(new URLSearchParams(location.search).get("k"));
  return Number.isInteger(k) && k > 0 ? k : null;
}

function offerK(largest) {
  passK.closest("label").hidden = largest < 2;
  passK.max = largest;
  passK.value = Math.min(chosenK() ?? largest, largest);
  setText(root.querySelector("[data-pass-k-shown]"), `k = ${passK.value}`);
}

function chooseK() {
  const isLargest = passK.value === passK.max;
  keepInAddress("k", isLargest ? null : passK.value);
  for (const chart of sources.get("passes").charts) chart.draw();
}

function reorder() {
  keepInAddress("rows", rows.value === "difficulty" ? null : rows.value);
  for (const source of sources.values()) source.refresh({ isUrgent: true });
}

// A zoom of the page requests its steps in narrower columns.
function follow(view) {
  if (view.range?.first === range?.first && view.range?.last === range?.last) return;
  ({ range } = view);
  for (const source of sources.values()) source.refresh({ isUrgent: true });
}

// A zoom here applies to the whole page.
function followZoom(change) {
  const [low, high] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  if (low !== undefined) zoom(makeRange(Math.ceil(low), Math.floor(high)));
  else if (change["xaxis.autorange"]) zoom(null);
}

const sources = new Map();
const charts = new Map();
for (const element of root.querySelectorAll("[data-signal-chart]")) {
  const name = element.dataset.source;
  if (!sources.has(name)) sources.set(name, new Source(name));
  charts.set(element, new Chart(element, sources.get(name)));
}
const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = charts.get(target);
      chart.isVisible = isIntersecting;
      if (isIntersecting) chart.show();
    }
    for (const source of sources.values()) source.schedule();
  },
  { rootMargin: "200px" },
);
for (const element of charts.keys()) watcher.observe(element);

rows.addEventListener("change", reorder);
passK.addEventListener("input", chooseK);
document.addEventListener("runframe", ({ detail }) => {
  hasEnded = detail.run.has_ended;
  if (detail.type !== "snapshot" && !detail.steps.length) return;
  for (const source of sources.values()) source.refresh();
});
document.addEventListener("themechange", () => {
  for (const chart of charts.values()) chart.draw();
});
// Draw data and theme changes of the time when the page was hidden.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  for (const chart of charts.values()) if (chart.isVisible) chart.show();
  for (const source of sources.values()) source.schedule();
});

// `view` has the shown steps; `onZoom` receives new ones.
export function linkSignals({ view, onZoom }) {
  zoom = onZoom;
  follow(view);
  document.addEventListener("runview", () => follow(view));
}
