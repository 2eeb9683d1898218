// A comparison: small charts, kept current while a run goes on, and its choices.
import { SmallMultiples } from "../charts/small_multiples.js";

const LIVE_MS = 5_000;
const REST_FACTOR = 20; // of the time that an answer took

const root = document.querySelector("[data-small-charts]");
const answer = document.querySelector("[data-answer-part]");
const charts = new SmallMultiples(root, { onPoint: openGroups });

// A click on a point opens that run's groups at that step.
function openGroups(point) {
  const link = document.querySelector(`a[data-run="${point.data.meta?.run}"]`);
  const step = point.customdata;
  if (link && step !== undefined)
    location.assign(`${link.pathname}groups/?step=${step}`);
}

async function refresh() {
  const shown = [...root.querySelectorAll("[data-small-plot]")];
  const query = new URLSearchParams(location.search);
  query.delete("pin");
  for (const { dataset } of shown) query.append("pin", dataset.smallPlot);
  const response = await fetch(`${root.dataset.source}?${query}`);
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  const found = await response.json();
  charts.draw(found.charts);
  if (answer.innerHTML.trim() !== found.answer.trim()) answer.innerHTML = found.answer;
  return found.is_live;
}

async function keepCurrent() {
  const begin = performance.now();
  let isLive = true;
  if (!document.hidden) {
    try {
      isLive = await refresh();
    } catch (error) {
      console.warn(error); // the next try may find the server back
    }
  }
  const rest = Math.max(LIVE_MS, REST_FACTOR * (performance.now() - begin));
  if (isLive) setTimeout(keepCurrent, rest);
}

// At the limit, the other checkboxes are disabled.
function limit(form, name, { least = 0 } = {}) {
  const boxes = [...form.querySelectorAll(`[name=${name}][type=checkbox]`)];
  const most = Number(form.dataset.most);
  const output = form.querySelector("[data-choices-status]");
  const count = () => {
    const num = boxes.filter((box) => box.checked).length;
    for (const box of boxes) box.disabled = !box.checked && num >= most;
    if (output) output.textContent = `${num} of ${most} runs selected`;
    form.querySelector("button").disabled = num < least;
  };
  form.addEventListener("change", count);
  count();
}

const choices = document.querySelector("[data-choices]");
if (choices) limit(choices, "runs", { least: 1 });

const pins = document.querySelector("[data-pin-form]");
limit(pins, "pin", { least: 1 });
pins.addEventListener("formdata", ({ formData }) => {
  for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
});

// Links to another grouping keep the current view.
const by = document.querySelector("[data-by-form]");
by?.addEventListener("change", () => {
  const query = new URLSearchParams(location.search);
  query.set("by", by.elements.by.value);
  location.assign(`?${query}`);
});

for (const button of document.querySelectorAll("[data-without-script]"))
  button.hidden = true;

charts.draw(JSON.parse(document.getElementById("compare-charts").textContent));
if (root.dataset.live !== undefined) setTimeout(keepCurrent, LIVE_MS);
