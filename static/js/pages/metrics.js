// A chart of every metric that a run has, found as one types.

import { drawRunCharts } from "./run_charts.js";
import { makeMatcher } from "../charts/search.js";
import { family, insertInOrder } from "../live/metric_order.js";
import { isBound } from "../live/numbers.js";
import { store } from "./run.js";

const template = JSON.parse(document.getElementById("figure").textContent);
const search = document.querySelector("[data-metric-search]");
const status = document.querySelector("[data-metric-status]");
const blank = document.getElementById("chart-of-a-metric");
const cardOf = new Map(); // metric -> card
const { root, board, toolbar } = drawRunCharts({ figures: {} });

function figureOf(metric) {
  const pattern = `^${metric.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;
  const [trace] = template.data;
  return {
    ...template,
    data: [{ ...trace, meta: { ...trace.meta, each: pattern } }],
    layout: { ...template.layout, title: { text: metric } },
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
  card.querySelector(".chart-title").textContent = metric;
  for (const part of card.querySelectorAll("[aria-label]"))
    part.setAttribute(
      "aria-label",
      part.getAttribute("aria-label").replace("…", metric),
    );
  const title = family(metric);
  const section =
    root.querySelector(`[data-family="${CSS.escape(title)}"]`) ?? addFamily(title);
  const grid = section.querySelector(".chart-grid");
  insertInOrder(grid, card, ({ dataset }) => dataset.metric);
  addChart(metric, card);
}

function addFamily(name) {
  const section = document.createElement("section");
  section.className = "chart-section";
  section.dataset.family = name;
  const title = document.createElement("h2");
  title.className = "chart-section-title";
  title.id = `family-${root.querySelectorAll("[data-family]").length + 1}`;
  title.textContent = name;
  section.setAttribute("aria-labelledby", title.id);
  const grid = document.createElement("div");
  grid.className = "chart-grid";
  section.append(title, grid);
  insertInOrder(root, section, ({ dataset }) => dataset.family);
  return section;
}

function addNew() {
  const fresh = store.names().filter((name) => !cardOf.has(name) && !isBound(name));
  for (const metric of fresh) addCard(metric);
  if (!fresh.length) return;
  toolbar.show();
  find();
}

function find() {
  const { matches, error } = makeMatcher(search.value);
  let count = 0;
  for (const [metric, card] of cardOf) {
    card.hidden = !matches(metric);
    if (!card.hidden) count += 1;
  }
  for (const section of root.querySelectorAll("[data-family]"))
    section.hidden = !section.querySelector(".chart:not([hidden])");
  const all = cardOf.size.toLocaleString("en-US");
  const text = search.value.trim() ? `${count} of ${all} metrics` : `${all} metrics`;
  status.textContent = error || text;
}

function write() {
  const url = new URL(location.href);
  if (search.value.trim()) url.searchParams.set("q", search.value);
  else url.searchParams.delete("q");
  history.replaceState(history.state, "", url);
}

for (const card of root.querySelectorAll("[data-metric]"))
  addChart(card.dataset.metric, card);
search.value = new URLSearchParams(location.search).get("q") ?? "";
search.addEventListener("input", () => {
  find();
  write();
});
document.addEventListener("runframe", addNew);
find();
// Now that the cards are there that an address may name.
if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
