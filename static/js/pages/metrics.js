// A chart of every metric that a run has, listed at the side and found as one types; the
// charts of groups and rules, the machine's, and the table of all values.

import { hasValues, isFlat, metricsOf } from "../charts/figure.js";
import { makeMatcher } from "../charts/search.js";
import {
  compareGroups,
  compareMetrics,
  groupOf,
  insertInOrder,
  titleOf,
  titleWithoutUnit,
  unitOf,
} from "../live/metric_titles.js";
import { setText } from "../live/announce.js";
import { drawnWith, isBound, sig3 } from "../live/numbers.js";
import { ArrangedCharts } from "./arranged_charts.js";
import { openBoard, showBoard } from "./boards.js";
import { cardId, MetricList } from "./metric_list.js";
import { store } from "./run.js";
import { drawRunCharts } from "./run_charts.js";
import { linkSignals } from "./signals.js";
import "./system.js";

const figures = JSON.parse(document.getElementById("figures").textContent);
const template = JSON.parse(document.getElementById("figure").textContent);
const search = document.querySelector("[data-metric-search]");
const status = document.querySelector("[data-metric-status]");
const flat = document.querySelector("[data-flat]");
const blank = document.getElementById("chart-of-a-metric");
const rows = document.querySelector("[data-values]");
const MAX_MISSING = 4; // names of charts
const cardOf = new Map(); // metric -> card
const combined = new Map(); // card -> figure
const others = new Map(); // card of groups and rules, or of the machine -> title
const { root, board, toolbar, view } = drawRunCharts({ figures });
const wasHidden = new Set(root.querySelectorAll(".chart[hidden]"));
linkSignals({ view, onZoom: (range) => toolbar.zoom(range) });

// The plots of a row are as high as the highest.
const resizer = new ResizeObserver((entries) => {
  for (const { target } of entries)
    if (target.classList.contains("js-plotly-plot")) window.Plotly.Plots.resize(target);
});
for (const plot of root.querySelectorAll(".chart-plot")) resizer.observe(plot);

function figureOf(metric) {
  const pattern = `^${metric.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;
  const [trace] = template.data;
  return {
    ...template,
    data: [{ ...trace, meta: { ...trace.meta, each: pattern } }],
    layout: {
      ...template.layout,
      title: { text: titleWithoutUnit(metric) },
      yaxis: { ...template.layout.yaxis, title: { text: unitOf(metric) } },
    },
  };
}

// From the template: the server sends no card for each of hundreds of metrics.
function makeCard(metric) {
  const card = blank.content.firstElementChild.cloneNode(true);
  card.id = cardId(metric);
  card.dataset.metric = metric;
  card.querySelector("[data-chart]").dataset.chart = card.id.replace("chart-", "");
  const heading = card.querySelector(".chart-title");
  heading.textContent = titleWithoutUnit(metric);
  heading.title = metric;
  const about = card.querySelector("[data-about]");
  if (titleOf(metric) === metric)
    about.remove(); // the help does not know it
  else about.href = about.href.replace(encodeURIComponent("…"), metric);
  card.querySelector(".chart-about").textContent = metric;
  for (const part of card.querySelectorAll("[aria-label]"))
    part.setAttribute(
      "aria-label",
      part.getAttribute("aria-label").replace("…", titleOf(metric)),
    );
  cardOf.set(metric, card);
  resizer.observe(card.querySelector("[data-chart]"));
  board.add(card.querySelector("[data-chart]"), figureOf(metric));
  return card;
}

function gridOf(metric) {
  const title = groupOf(metric);
  const section =
    root.querySelector(`[data-group="${CSS.escape(title)}"]`) ?? addGroup(title);
  return section.querySelector(".chart-grid");
}

// A metric that came while one looks.
function addCard(metric) {
  const card = makeCard(metric);
  insertInOrder(gridOf(metric), card, keyOf, compareCards);
  list.addMetric(metric, card.id);
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
  const groups = [...root.querySelectorAll(":scope > [data-group]:not([data-pinned])")];
  const next = groups.find(
    ({ dataset }) =>
      dataset.group === "Machine" || compareGroups(name, dataset.group) < 0,
  );
  root.insertBefore(section, next ?? null);
  return section;
}

function addNew() {
  const drawn = new Set([...combined.keys()].map((card) => card.dataset.only));
  const fresh = store
    .names()
    .filter(
      (name) => !cardOf.has(name) && !drawn.has(name) && drawnWith(name) === name,
    );
  for (const metric of fresh) addCard(metric);
  if (fresh.length) {
    toolbar.show();
    showPins();
  }
  find();
}

// A search, a choice and an address show flat charts too.
function find() {
  const cards = placeFirst();
  const named = root.querySelector(
    `:is(.chart, section)[id="${CSS.escape(location.hash.slice(1))}"]`,
  );
  const { matches, error } = makeMatcher(search.value);
  const isSearched = search.value.trim() !== "";
  const folded = [];
  const listed = new Set(); // ids of cards
  const empty = new Set(); // cards
  let count = 0;
  // "^kl" is of the name or of the title, "kl mean" of both together.
  const isFound = (name, title) => [name, title, `${name} ${title}`].some(matches);
  const show = (card, { found, metrics }) => {
    if (found) listed.add(card.id);
    const isNamed = named?.contains(card) ?? false;
    const isWanted = isSearched ? found : list.has(card.id) || isNamed;
    const isFolded =
      isFlat(metrics, store) && !isSearched && !list.isNarrowed && !isNamed;
    if (isFolded) folded.push(card.querySelector(".chart-title").textContent);
    card.hidden = !isWanted || (isFolded && flat.ariaPressed !== "true");
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
    const isEmpty =
      store.attempt === null ? wasHidden.has(card) : !hasValues(metrics, store);
    if (isEmpty) {
      empty.add(card);
      card.hidden = true;
      listed.delete(card.id);
    }
    if (card.dataset.only && isFound(card.dataset.only, title)) count += 1;
  }
  for (const [card, title] of others)
    show(card, { found: isFound(title, title), metrics: [] });
  const isNarrowed = isSearched || list.isNarrowed;
  tellMissing(isSearched ? [] : [...list.chosen], { cards, empty });
  for (const section of root.querySelectorAll("[data-group]"))
    section.hidden =
      !section.querySelector(".chart:not([hidden], [data-lacks])") &&
      !section.querySelector("[data-missing]:not([hidden])") &&
      !("system" in section.dataset && hasMachine()) && // its axis is chosen there
      (isNarrowed || !section.querySelector(".chart-section-note"));
  arranged.update();
  showBoard({ list, view });
  list.filter((id) => listed.has(id), { isSearched });
  flat.hidden = !folded.length;
  flat.textContent =
    folded.length === 1 ? "1 flat chart" : `${folded.length} flat charts`;
  flat.title = `All values below 0.0001: ${folded.join(", ")}`;
  const alone = [...combined.keys()].filter(({ dataset }) => dataset.only);
  const all = (cardOf.size + alone.length).toLocaleString("en-US");
  const chosen = `Only ${list.chosen.size} ticked`;
  const metrics = all === "1" ? "metric" : "metrics";
  const text = list.isNarrowed ? chosen : `${all} ${metrics}`;
  const found = isSearched ? `${count} of ${all} ${metrics}` : text;
  if (status.textContent !== (error || found)) status.textContent = error || found;
}

function hasMachine() {
  return [...list.chosen].some((id) => id.startsWith("chart-machine-"));
}

// In one line, which of the chosen charts the run has no values for.
function tellMissing(chosen, { cards, empty }) {
  const missing = chosen.filter((id) => {
    const card = cards.get(id);
    return !card || empty.has(card) || "lacks" in card.dataset;
  });
  const line = root.querySelector("[data-missing]");
  line.hidden = !missing.length;
  const names = missing.slice(0, MAX_MISSING).map((id) => {
    const title = cards.get(id)?.querySelector(".chart-title");
    return title?.firstChild.textContent.trim() ?? id.replace("chart-", "");
  });
  const more = missing.length - names.length;
  const charts = chosen.length === 1 ? "chart" : "charts";
  const have = missing.length === 1 ? "has" : "have";
  setText(
    line,
    `${missing.length} of ${chosen.length} ${charts} ${have} no values in this run: ` +
      `${names.join(", ")}${more ? ` and ${more} more` : ""}.`,
  );
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
    interval.textContent = ` (${sig3(low)} to ${sig3(high)})`;
  return [sig3(last(name)), interval];
}

function showValues() {
  const known = new Map([...rows.children].map((row) => [row.dataset.value, row]));
  for (const name of store.names().filter((name) => !isBound(name))) {
    const { low, high } = store.rangeOf(name);
    const row = known.get(name) ?? addRow(name);
    row.querySelector("[data-last]").replaceChildren(...describeLast(name));
    row.querySelector("[data-lowest]").textContent = sig3(low);
    row.querySelector("[data-highest]").textContent = sig3(high);
    const exact = { last: store.rangeOf(name).last, lowest: low, highest: high };
    for (const [part, value] of Object.entries(exact))
      row.querySelector(`[data-${part}]`).title = value ?? "";
    list.showLast(name, sig3(store.rangeOf(name).last));
  }
  document.querySelector("[data-values-empty]").hidden = rows.children.length > 0;
}

// Charts are hidden until the run's data says which there are: none moves before one's
// eyes, and the chart that the address names stays where it is.
const ARRIVE_MS = 2_000; // also without data
function arrive() {
  const page = document.querySelector(".metrics");
  if ("ready" in page.dataset) return;
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  requestAnimationFrame(() => {
    page.dataset.ready = "";
  });
}
setTimeout(arrive, ARRIVE_MS);

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
      arrive();
    },
    store.numLive ? 1_000 : 0,
  );
}

for (const card of root.querySelectorAll(".chart")) {
  const plot = card.querySelector("[data-chart]");
  const heading = card.querySelector(".chart-title");
  if (!plot) {
    others.set(card, heading.firstChild.textContent);
    continue;
  }
  const figure = figures[plot.dataset.chart];
  const metrics = figure.data.flatMap(({ meta }) => meta.terms ?? []);
  const name = heading.title;
  if (metrics.some(([metric]) => metric === name)) card.dataset.only = name;
  combined.set(card, figure);
}
const list = new MetricList(document.querySelector("[data-metric-list]"), {
  onChange: find,
});
for (const metric of list.metrics()) gridOf(metric).append(makeCard(metric));
toolbar.show();

// The chosen charts in their order come first, or else the team's pinned metrics.
const first = root.querySelector("[data-pinned]");
const arranged = new ArrangedCharts({
  section: first,
  button: document.querySelector("[data-arrange]"),
  list,
});
const pinUrl = document.querySelector("[data-metric-list]").dataset.pin; // of members
let pinned = JSON.parse(document.getElementById("pinned-metrics").textContent);

function nameOf(card) {
  return card.dataset.metric ?? card.querySelector(".chart-title").title;
}

// Returns all cards by their ids.
function placeFirst() {
  const all = [...cardOf.values(), ...combined.keys(), ...others.keys()];
  const cards = new Map(all.map((card) => [card.id, card]));
  const names = new Map(all.map((card) => [nameOf(card), card]));
  const wanted = list.isNarrowed
    ? [...list.chosen].map((id) => cards.get(id))
    : pinned.map((name) => names.get(name));
  arranged.place(wanted.filter(Boolean));
  const title = list.isNarrowed ? openBoard() || "Chosen charts" : "Pinned";
  setText(first.querySelector("[data-first-title]"), title);
  return cards;
}

function showPins() {
  for (const card of [...cardOf.values(), ...combined.keys()])
    offerPin(card, nameOf(card));
  list.markPinned(pinned);
}

function offerPin(card, name) {
  if (!pinUrl) return;
  let item = card.querySelector("[data-chart-pin]");
  if (!item) {
    item = document.createElement("button");
    item.type = "button";
    item.className = "chart-menu-item";
    item.dataset.chartPin = "";
    item.addEventListener("click", () => pin(name));
    card.querySelector(".chart-menu-panel").prepend(item);
  }
  item.textContent = pinned.includes(name) ? "Unpin" : "Pin for the team";
}

async function pin(name) {
  const body = new URLSearchParams({ name });
  if (pinned.includes(name)) body.set("off", "1");
  const form = document.querySelector("[data-chart-controls]");
  const headers = { "X-CSRFToken": form.elements.csrfmiddlewaretoken.value };
  const answer = await fetch(pinUrl, { method: "POST", headers, body }).catch(
    () => null,
  );
  const found = await answer?.json().catch(() => null);
  const trouble = document.querySelector("[data-pin-status]");
  trouble.hidden = Boolean(answer?.ok && found);
  if (answer?.ok && found) {
    pinned = found.names;
    showPins();
    find();
  } else trouble.textContent = found?.error ?? "Cannot reach Cohort. Pin it again.";
}
showPins();

// Charts, or the table of all values.
const views = [...document.querySelectorAll("[data-view]")];
function showView(name) {
  for (const button of views) button.ariaPressed = String(button.dataset.view === name);
  for (const part of document.querySelectorAll("[data-view-of]"))
    part.hidden = part.dataset.viewOf !== name;
}
for (const button of views)
  button.addEventListener("click", () => {
    const { view: name } = button.dataset;
    showView(name);
    const url = new URL(location.href);
    if (name === "values") url.searchParams.set("view", name);
    else url.searchParams.delete("view");
    history.replaceState(history.state, "", url);
  });

const query = new URLSearchParams(location.search);
search.value = query.get("q") ?? "";
if (query.get("view") === "values" || location.hash === "#values") showView("values");
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
document.addEventListener("runview", () => showBoard({ list, view }));
document.addEventListener("visibilitychange", updateSoon);
window.addEventListener("hashchange", find);
find();
if (store.names().length) updateSoon();
// Now that the cards are there that an address may name.
if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
