// A chart of every metric that a run has, found as one types.

import { drawRunCharts } from "./run_charts.js";
import { makeMatcher } from "../charts/search.js";
import {
  compareGroups,
  compareMetrics,
  groupOf,
  insertInOrder,
  titleOf,
} from "../live/metric_titles.js";
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
  insertInOrder(grid, card, ({ dataset }) => dataset.metric, compareMetrics);
  addChart(metric, card);
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
    card.hidden = !matches(`${metric} ${titleOf(metric)}`);
    if (!card.hidden) count += 1;
  }
  for (const section of root.querySelectorAll("[data-group]"))
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
