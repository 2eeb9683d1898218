// A chart of every metric that a run has, found as one types; the signal charts and the
// table of all values.

import { hasValues, isFlat, metricsOf } from "../charts/figure.js";
import { makeMatcher } from "../charts/search.js";
import {
  compareGroups,
  compareMetrics,
  groupOf,
  insertInOrder,
  titleOf,
} from "../live/metric_titles.js";
import { isBound, sig4 } from "../live/numbers.js";
import { store } from "./run.js";
import { drawRunCharts } from "./run_charts.js";
import { linkSignals } from "./signals.js";

const figures = JSON.parse(document.getElementById("figures").textContent);
const template = JSON.parse(document.getElementById("figure").textContent);
const search = document.querySelector("[data-metric-search]");
const status = document.querySelector("[data-metric-status]");
const flat = document.querySelector("[data-flat]");
const blank = document.getElementById("chart-of-a-metric");
const rows = document.querySelector("[data-values]");
const cardOf = new Map(); // metric -> card
const combined = new Map(); // card -> figure
const { root, board, toolbar, view } = drawRunCharts({ figures });
const wasHidden = new Set(root.querySelectorAll(".chart[hidden]"));
linkSignals({ view, onZoom: (range) => toolbar.zoom(range) });

function figureOf(metric) {
  const pattern = `^${metric.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;
  const [trace] = template.data;
  return {
    ...template,
    data: [{ ...trace, meta: { ...trace.meta, each: pattern } }],
    layout: { ...template.layout, title: { text: titleOf(metric) } },
  };
}

function addChart(metric, card) {
  cardOf.set(metric, card);
  board.add(card.querySelector("[data-chart]"), figureOf(metric));
}

// A metric that came while one looks.
function addCard(metric) {
  const card = blank.content.firstElementChild.cloneNode(true);
  const id = metric.replaceAll(/[^A-Za-z0-9_]+/g, "-").replaceAll(/^[-_]+|[-_]+$/g, "");
  card.id = `chart-${id}`;
  card.dataset.metric = metric;
  card.querySelector("[data-chart]").dataset.chart = id;
  const heading = card.querySelector(".chart-title");
  heading.textContent = titleOf(metric);
  heading.title = metric;
  card.querySelector(".chart-about").textContent = metric;
  for (const part of card.querySelectorAll("[aria-label]"))
    part.setAttribute(
      "aria-label",
      part.getAttribute("aria-label").replace("…", titleOf(metric)),
    );
  const title = groupOf(metric);
  const section =
    root.querySelector(`[data-group="${CSS.escape(title)}"]`) ?? addGroup(title);
  const grid = section.querySelector(".chart-grid");
  insertInOrder(grid, card, keyOf, compareCards);
  addChart(metric, card);
}

// Charts of several metrics come first.
function keyOf({ dataset }) {
  return dataset.metric ?? "";
}

function compareCards(one, other) {
  return one && other ? compareMetrics(one, other) : Number(!other) - Number(!one);
}

function addGroup(name) {
  const section = document.createElement("section");
  section.className = "chart-section";
  section.dataset.group = name;
  const title = document.createElement("h2");
  title.className = "chart-section-title";
  title.id = `group-${root.querySelectorAll("[data-group]").length + 1}`;
  title.textContent = name;
  section.setAttribute("aria-labelledby", title.id);
  const grid = document.createElement("div");
  grid.className = "chart-grid";
  section.append(title, grid);
  insertInOrder(root, section, ({ dataset }) => dataset.group, compareGroups);
  return section;
}

function addNew() {
  const drawn = new Set([...combined.keys()].map((card) => card.dataset.only));
  const fresh = store
    .names()
    .filter((name) => !cardOf.has(name) && !drawn.has(name) && !isBound(name));
  for (const metric of fresh) addCard(metric);
  if (fresh.length) toolbar.show();
  find();
}

// A search and an address find flat charts too.
function find() {
  const { matches, error } = makeMatcher(search.value);
  const isSearched = search.value.trim() !== "";
  const folded = [];
  let count = 0;
  // "^kl" is of the name or of the title, "kl mean" of both together.
  const isFound = (name, title) => [name, title, `${name} ${title}`].some(matches);
  const show = (card, { found, metrics }) => {
    const isFolded =
      isFlat(metrics, store) && !isSearched && location.hash !== `#${card.id}`;
    if (isFolded) folded.push(card.querySelector(".chart-title").textContent);
    card.hidden = !found || (isFolded && flat.ariaPressed !== "true");
  };
  for (const [metric, card] of cardOf) {
    const found = isFound(metric, titleOf(metric));
    show(card, { found, metrics: [metric] });
    if (found) count += 1;
  }
  for (const [card, figure] of combined) {
    const metrics = metricsOf(figure, store);
    const title = card.querySelector(".chart-title").textContent;
    const found = metrics.some((metric) => isFound(metric, title));
    show(card, { found, metrics });
    // Until the run's data has come, as the server says.
    if (store.attempt === null) card.hidden ||= wasHidden.has(card);
    else if (!hasValues(metrics, store)) card.hidden = true;
    if (card.dataset.only && isFound(card.dataset.only, title)) count += 1;
  }
  for (const section of root.querySelectorAll("[data-group]"))
    section.hidden = !section.querySelector(
      ".chart:not([hidden]), .chart-section-note",
    );
  flat.hidden = !folded.length;
  flat.textContent =
    folded.length === 1 ? "1 flat chart" : `${folded.length} flat charts`;
  flat.title = `All values below 0.0001: ${folded.join(", ")}`;
  const alone = [...combined.keys()].filter(({ dataset }) => dataset.only);
  const all = (cardOf.size + alone.length).toLocaleString("en-US");
  const text = isSearched ? `${count} of ${all} metrics` : `${all} metrics`;
  if (status.textContent !== (error || text)) status.textContent = error || text;
}

function write() {
  const url = new URL(location.href);
  if (search.value.trim()) url.searchParams.set("q", search.value);
  else url.searchParams.delete("q");
  if (flat.ariaPressed === "true") url.searchParams.set("flat", "1");
  else url.searchParams.delete("flat");
  history.replaceState(history.state, "", url);
}

// The table of all values.

function addRow(name) {
  const row = document.createElement("tr");
  row.dataset.value = name;
  const head = document.createElement("th");
  head.scope = "row";
  head.title = name;
  head.textContent = titleOf(name);
  row.append(head);
  for (const part of ["last", "lowest", "highest"]) {
    const cell = document.createElement("td");
    cell.className = "number";
    cell.dataset[part] = "";
    row.append(cell);
  }
  insertInOrder(rows, row, ({ dataset }) => dataset.value, compareMetrics);
  return row;
}

function describeLast(name) {
  const last = (metric) => store.rangeOf(metric)?.last;
  const [low, high] = [last(`${name}/low`), last(`${name}/high`)];
  const interval = document.createElement("span");
  interval.className = "text-quiet";
  if (low !== undefined && high !== undefined)
    interval.textContent = ` (${sig4(low)} to ${sig4(high)})`;
  return [sig4(last(name)), interval];
}

function showValues() {
  const known = new Map([...rows.children].map((row) => [row.dataset.value, row]));
  for (const name of store.names().filter((name) => !isBound(name))) {
    const { low, high } = store.rangeOf(name);
    const row = known.get(name) ?? addRow(name);
    row.querySelector("[data-last]").replaceChildren(...describeLast(name));
    row.querySelector("[data-lowest]").textContent = sig4(low);
    row.querySelector("[data-highest]").textContent = sig4(high);
  }
  document.querySelector("[data-values-empty]").hidden = rows.children.length > 0;
}

// Once a second is enough.
let isDue = false;
function updateSoon() {
  if (isDue || document.hidden) return;
  isDue = true;
  setTimeout(
    () => {
      isDue = false;
      addNew();
      showValues();
    },
    store.numLive ? 1_000 : 0,
  );
}

for (const card of root.querySelectorAll(".chart")) {
  if (card.dataset.metric) addChart(card.dataset.metric, card);
  else {
    const figure = figures[card.querySelector("[data-chart]").dataset.chart];
    const metrics = figure.data.flatMap(({ meta }) => meta.terms ?? []);
    const name = card.querySelector(".chart-title").title;
    if (metrics.some(([metric]) => metric === name)) card.dataset.only = name;
    combined.set(card, figure);
  }
}
const query = new URLSearchParams(location.search);
search.value = query.get("q") ?? "";
flat.ariaPressed = String(query.has("flat"));
search.addEventListener("input", () => {
  find();
  write();
});
flat.addEventListener("click", () => {
  flat.ariaPressed = String(flat.ariaPressed !== "true");
  find();
  write();
});
document.addEventListener("runframe", updateSoon);
document.addEventListener("visibilitychange", updateSoon);
window.addEventListener("hashchange", find);
find();
if (store.names().length) updateSoon();
// Now that the cards are there that an address may name.
if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
