// The four charts of a run, its verdict and numbers, and completions of a step.

import { alertCodes } from "../live/alerts.js";
import { showWarnings } from "../live/announce.js";
import { describeWarning, listWarnings } from "../live/warnings.js";
import { store } from "./run.js";
import { alerts } from "./run_alerts.js";
import { drawRunCharts } from "./run_charts.js";

// Minimum interval between requests of a part; longer for slow responses.
const LOAD_EVERY = 2_000;
const REST_FACTOR = 20;
const RULES_EVERY = 60_000;

const warnings = document.querySelector("[data-warnings]");
const ruleWarnings = document.querySelector("[data-rule-warnings]");
const headline = document.querySelector("[data-headline]");
const samples = document.querySelector("[data-samples]");

// What the server made of the run, requested again after steps.
class Part {
  #timer = null;
  #notBefore = 0;
  #isLoading = false;
  #isStale = false;

  constructor(addressOf, show, { every = LOAD_EVERY } = {}) {
    Object.assign(this, { addressOf, show, every });
  }

  // `isUrgent`: a user action needs it.
  refresh({ isUrgent = false } = {}) {
    this.#isStale = true;
    if (isUrgent) this.#notBefore = 0;
    this.schedule();
  }

  schedule() {
    if (!this.#isStale || this.#isLoading || document.hidden) return;
    clearTimeout(this.#timer);
    const wait = Math.max(0, this.#notBefore - performance.now());
    this.#timer = setTimeout(() => this.#load(), wait);
  }

  async #load() {
    this.#isLoading = true;
    this.#isStale = false;
    const begin = performance.now();
    const address = this.addressOf();
    const answer = await fetch(address).catch(() => null);
    const body = answer?.ok ? await answer.text().catch(() => null) : null;
    const now = performance.now();
    this.#isLoading = false;
    this.#notBefore = now + Math.max(this.every, REST_FACTOR * (now - begin));
    if (address !== this.addressOf()) this.refresh({ isUrgent: true });
    else if (body === null) this.refresh();
    else {
      this.show(body);
      this.schedule();
    }
  }
}

// Focus stays on the same link or button, which the new part has too.
function replace(region, html) {
  const focusable = "a, button, [tabindex]";
  const at = [...region.querySelectorAll(focusable)].indexOf(document.activeElement);
  region.innerHTML = html;
  if (at >= 0) region.querySelectorAll(focusable)[at]?.focus();
}

// The step and the group are in the page's address.
function sampleAddress() {
  const chosen = new URLSearchParams(location.search);
  const query = new URLSearchParams();
  for (const name of ["step", "group"])
    if (chosen.has(name)) query.set(name, chosen.get(name));
  return `${samples.dataset.samples}?${query}`;
}

// On a narrow screen the samples may be above or below what chose a step.
let isSampleWanted = false;

function reveal(region) {
  const { top, bottom } = region.getBoundingClientRect();
  if (top > innerHeight / 2 || bottom < innerHeight / 2)
    region.scrollIntoView({ block: "start" });
}

function chooseStep(step) {
  isSampleWanted = true;
  chooseSample({ step, group: null });
}

function chooseSample({ step, group }) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries({ step, group })) {
    if (value === null) url.searchParams.delete(name);
    else if (value !== undefined) url.searchParams.set(name, value);
  }
  history.replaceState(history.state, "", url);
  sampled.refresh({ isUrgent: true });
}

const numbers = new Part(
  () => headline.dataset.headline,
  (html) => replace(headline, html),
);
const sampled = new Part(sampleAddress, (html) => {
  replace(samples, html);
  if (isSampleWanted) reveal(samples);
  isSampleWanted = false;
});
const rules = new Part(
  () => ruleWarnings.dataset.url,
  (text) => showWarnings(ruleWarnings, JSON.parse(text).warnings),
  { every: RULES_EVERY },
);

samples.addEventListener("click", ({ target }) => {
  const next = target.closest("[data-sample-next]");
  // From now on this step, or its next group would be one of another step.
  if (next) {
    const shown = samples.querySelector("[data-sample-step]").textContent;
    const step = Number(shown.replaceAll(",", ""));
    chooseSample({ step, group: next.dataset.sampleNext });
  }
  if (target.closest("[data-sample-newest]")) chooseSample({ step: null, group: null });
});

// As an alert of the reward's chart, with a sign of its own.
function readJump() {
  const jump = headline.querySelector("[data-jump]");
  if (!jump) return [];
  const link = jump.querySelector("[data-sample-at]");
  return [
    {
      id: 0,
      metric: "reward/mean",
      step: Number(jump.dataset.jump),
      name: link.textContent.split(" at ")[0],
      state: link.title,
      sign: jump.dataset.sign,
      url: link.href,
    },
  ];
}

// The jump's step, without a new page.
headline.addEventListener("click", (event) => {
  const link = event.target.closest("[data-sample-at]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  chooseStep(link.dataset.sampleAt);
});

drawRunCharts({
  figures: JSON.parse(document.getElementById("figures").textContent),
  onPoint: chooseStep,
  marks: readJump,
});

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
  starting.hidden = run.state === "paused";
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

updateWarnings();
sampled.refresh();
rules.refresh();

document.addEventListener("runalerts", updateWarnings);
const shown = Number(document.querySelector("[data-run]").dataset.seq);
let { state } = document.querySelector("[data-run-state] .state").dataset;
// Until the first frame, by the state on the page.
showStart({ state, last_step: 0, has_ended: false });

document.addEventListener("runframe", ({ detail }) => {
  showStart(detail.run);
  updateWarnings();
  const isMoved = detail.run.state !== state;
  ({ state } = detail.run);
  const isNew = detail.steps.length > 0 || detail.evaluations.length > 0;
  // The page may be newer than a snapshot, but not the other way round for long.
  if (!isMoved && detail.type !== "snapshot" && !isNew) return;
  if (detail.type === "snapshot" && detail.seq <= shown) return;
  // Why it failed or paused itself, the server reads.
  const needsPerson = state === "failed" || detail.run.is_stuck;
  const hasReason = document.querySelector("[data-run-needs]") !== null;
  if (needsPerson !== hasReason) location.reload();
  for (const part of [numbers, sampled, rules]) part.refresh();
});
document.addEventListener("visibilitychange", () => {
  for (const part of [numbers, sampled, rules]) part.schedule();
});
