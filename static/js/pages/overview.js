// A run's charts and the table of its values.

import { Board } from "../charts/board.js";
import { sig4 } from "../live/numbers.js";
import { describeWarning, listWarnings } from "../live/warnings.js";
import { store } from "./run.js";

const root = document.querySelector("[data-charts]");
const slider = document.querySelector("[data-smoothing]");
const axis = document.querySelector("[data-x-axis]");
const rows = document.querySelector("[data-values]");
const warnings = document.querySelector("[data-warnings]");

// What is shown is in the address, so a link shows the same.
const query = new URLSearchParams(location.search);
if (query.has("smooth")) slider.value = query.get("smooth");
if (query.get("x") === "time") axis.value = "time";
const view = { smoothing: Number(slider.value), x: axis.value };

const board = new Board({
  root,
  figures: JSON.parse(document.getElementById("figures").textContent),
  store,
  view,
  onPoint: (step) => location.assign(`${root.dataset.groups}?step=${step}`),
});

function changeView() {
  view.smoothing = Number(slider.value);
  view.x = axis.value;
  document.querySelector("[data-smoothing-value]").textContent = slider.value;
  const url = new URL(location.href);
  url.searchParams.set("smooth", slider.value);
  url.searchParams.set("x", axis.value);
  history.replaceState(history.state, "", url);
  board.refresh();
}

slider.addEventListener("input", changeView);
axis.addEventListener("change", changeView);
document.querySelector("[data-smoothing-value]").textContent = slider.value;

// kl/mean and kl/coef stand together, whenever each first came.
function family(row) {
  return row.dataset.metric.split("/")[0];
}

function addRow(name) {
  const row = document.createElement("tr");
  row.dataset.metric = name;
  const head = document.createElement("th");
  head.scope = "row";
  head.className = "mono";
  head.textContent = name;
  row.append(head);
  for (const part of ["last", "lowest", "highest"]) {
    const cell = document.createElement("td");
    cell.className = "number";
    cell.dataset[part] = "";
    row.append(cell);
  }
  const relatives = [...rows.children].filter((other) => family(other) === family(row));
  if (relatives.length) relatives.at(-1).after(row);
  else rows.append(row);
  return row;
}

// The ends of an interval stand beside the metric they belong to.
function isBound(name) {
  return /^eval\/.*\/(low|high)$/.test(name);
}

function describeLast(name) {
  const last = (metric) => store.get(metric)?.values.at(-1);
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
    const { values } = store.get(name);
    const row = known.get(name) ?? addRow(name);
    row.querySelector("[data-last]").replaceChildren(...describeLast(name));
    row.querySelector("[data-lowest]").textContent = sig4(
      values.reduce((a, b) => Math.min(a, b)),
    );
    row.querySelector("[data-highest]").textContent = sig4(
      values.reduce((a, b) => Math.max(a, b)),
    );
  }
  document.querySelector("[data-values-empty]").hidden = rows.children.length > 0;
}

function showWarnings() {
  const texts = listWarnings(store.events, store.lastStep).map(describeWarning);
  // Unchanged text is not announced again.
  if (texts.join() === [...warnings.children].map((p) => p.textContent).join()) return;
  warnings.replaceChildren(
    ...texts.map((text) => {
      const paragraph = document.createElement("p");
      paragraph.className = "notice notice-warning";
      paragraph.textContent = text;
      return paragraph;
    }),
  );
}

if (store.names().length) showValues();
showWarnings();

// The table is read, not watched: once a second is enough.
let isTableDue = false;
document.addEventListener("runframe", () => {
  board.refresh();
  showWarnings();
  if (isTableDue) return;
  isTableDue = true;
  setTimeout(
    () => {
      isTableDue = false;
      showValues();
    },
    store.numLive ? 1_000 : 0,
  );
});
