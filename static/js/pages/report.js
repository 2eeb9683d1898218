// A report page: charts show their values by pointer and arrow keys.

import "../copy.js";
import { sig3 as write } from "../live/numbers.js";

const LEFT = 70;
const RIGHT = 626; // of the chart width 640
const WIDTH = 640;

function readChart(box) {
  const values = JSON.parse(box.querySelector("script").textContent);
  const lines = values.lines.filter((line) => line.x.length > 0);
  const all = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  return { ...values, lines, all };
}

// The index in a sorted list that is nearest to the value.
function nearest(sorted, value) {
  let low = 0;
  let high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle;
    else high = middle;
  }
  return value - sorted[low] <= sorted[high] - value ? low : high;
}

function describeValues(chart, x) {
  const values = chart.lines.map((line) => {
    const i = nearest(line.x, x);
    const at = line.x[i] === x ? "" : ` (step ${line.steps[i]})`;
    return `${line.name} ${write(line.values[i])}${at}`;
  });
  const where = chart.is_by_step ? `Step ${x}` : `${write(x)} ${chart.axis}`;
  return `${where}: ${values.join(" · ")}`;
}

function follow(box) {
  const chart = readChart(box);
  if (chart.all.length === 0) return;
  const svg = box.querySelector("svg");
  const cursor = svg.querySelector(".chart-cursor");
  const readout = box.querySelector("[data-readout]");
  const [first, last] = [chart.all[0], chart.all.at(-1)];
  let index = chart.all.length - 1;

  // A single value is in the middle of its chart.
  const across = (x) => (last > first ? (x - first) / (last - first) : 0.5);

  function show(next) {
    index = Math.max(0, Math.min(chart.all.length - 1, next));
    const x = chart.all[index];
    const at = LEFT + (RIGHT - LEFT) * across(x);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    readout.hidden = false;
    readout.textContent = describeValues(chart, x);
  }

  svg.addEventListener("pointermove", (event) => {
    const bounds = svg.getScreenCTM().inverse();
    const x = new DOMPoint(event.clientX, event.clientY).matrixTransform(bounds).x;
    if (x < 0 || x > WIDTH) return;
    const share = (x - LEFT) / (RIGHT - LEFT);
    show(nearest(chart.all, first + share * (last - first)));
  });
  box.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(readout.hidden ? chart.all.length - 1 : index + moves[event.key]);
  });
}

function followAll(root) {
  for (const box of root.querySelectorAll("[data-report-chart]")) {
    if (box.dataset.followed) continue;
    box.dataset.followed = "yes";
    follow(box);
  }
}

followAll(document);
// A live block is replaced by its newer version.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  // Not while the reader uses it; the next update follows soon.
  if (event.detail.target.matches(":hover, :focus-within"))
    event.detail.shouldSwap = false;
});
document.body.addEventListener("htmx:load", (event) => followAll(event.detail.elt));
