// A run's charts and the table of its values.

import { alertCodes } from "../live/alerts.js";
import { showWarnings } from "../live/announce.js";
import { compareMetrics, insertInOrder, titleOf } from "../live/metric_titles.js";
import { isBound, sig4 } from "../live/numbers.js";
import { describeWarning, listWarnings } from "../live/warnings.js";
import { store } from "./run.js";
import { alerts } from "./run_alerts.js";
import { drawRunCharts } from "./run_charts.js";
import { linkSignals } from "./signals.js";

const rows = document.querySelector("[data-values]");
const warnings = document.querySelector("[data-warnings]");

const figures = JSON.parse(document.getElementById("figures").textContent);
const { toolbar, view } = drawRunCharts({ figures });
linkSignals({ view, onZoom: (range) => toolbar.zoom(range) });

function addRow(name) {
  const row = document.createElement("tr");
  row.dataset.metric = name;
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
  insertInOrder(rows, row, ({ dataset }) => dataset.metric, compareMetrics);
  return row;
}

// Over all steps; the page has all evaluations.
function rangeOf(metric) {
  const values = store.evaluations.get(metric)?.values;
  if (!values) return store.ranges.get(metric);
  return { low: Math.min(...values), high: Math.max(...values), last: values.at(-1) };
}

function describeLast(name) {
  const last = (metric) => rangeOf(metric)?.last;
  const [low, high] = [last(`${name}/low`), last(`${name}/high`)];
  const interval = document.createElement("span");
  interval.className = "text-quiet";
  if (low !== undefined && high !== undefined)
    interval.textContent = ` (${sig4(low)} to ${sig4(high)})`;
  return [sig4(last(name)), interval];
}

function showValues() {
  const known = new Map([...rows.children].map((row) => [row.dataset.metric, row]));
  for (const name of store.names().filter((name) => !isBound(name))) {
    const { low, high } = rangeOf(name);
    const row = known.get(name) ?? addRow(name);
    row.querySelector("[data-last]").replaceChildren(...describeLast(name));
    row.querySelector("[data-lowest]").textContent = sig4(low);
    row.querySelector("[data-highest]").textContent = sig4(high);
  }
  document.querySelector("[data-values-empty]").hidden = rows.children.length > 0;
}

function updateWarnings() {
  const found = listWarnings(store.events, store.lastStep, alertCodes(alerts));
  showWarnings(warnings, found.map(describeWarning));
}

// Before the first step a list shows what is done, in place of empty charts.
const starting = document.querySelector("[data-starting]");

function showStart(run) {
  if (!starting?.isConnected) return;
  if (run.last_step > 0 || run.has_ended) {
    starting.remove();
    document.querySelector("[data-started]").classList.remove("is-starting");
    return;
  }
  const isSet = (name) => /^eval\/[^/]+\/mean$/.test(name);
  const sets = [...store.evaluations.keys()].filter(isSet);
  const isLoaded = !["queued", "starting"].includes(run.state);
  const done = {
    worker: run.state !== "queued",
    model: isLoaded,
    evaluation: isLoaded && sets.length >= Number(starting.dataset.starting),
    step: false,
  };
  let isNext = true;
  for (const item of starting.querySelectorAll("[data-start-part]")) {
    const isDone = done[item.dataset.startPart];
    item.dataset.done = isDone;
    if (isNext && !isDone) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
    isNext &&= isDone;
  }
  const count = starting.querySelector("[data-num-evaluated]");
  if (count) count.textContent = sets.length;
}

if (store.names().length) showValues();
updateWarnings();
// Until the first frame, by the state on the page.
const { state } = document.querySelector("[data-run-state] .state").dataset;
showStart({ state, last_step: 0, has_ended: false });

document.addEventListener("runalerts", updateWarnings);

// Updating the table once a second is enough.
let isTableDue = false;
function showValuesSoon() {
  if (isTableDue || document.hidden) return;
  isTableDue = true;
  setTimeout(
    () => {
      isTableDue = false;
      showValues();
    },
    store.numLive ? 1_000 : 0,
  );
}

document.addEventListener("runframe", ({ detail }) => {
  showStart(detail.run);
  updateWarnings();
  showValuesSoon();
});
document.addEventListener("visibilitychange", showValuesSoon);
