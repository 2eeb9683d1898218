// The frame of every run page: follows the run's stream and keeps the header true.

import { duration } from "../live/numbers.js";
import { RunStore } from "../live/store.js";
import { RunStream } from "../live/stream.js";

const root = document.querySelector("[data-run]");
const find = (name) => document.querySelector(`[data-run-${name}]`);

const QUEUE_LOOK_EVERY = 10_000;
const MAX_LIVE_STEPS = 3_000; // then a fresh, thinned snapshot is lighter

export const store = new RunStore();
let hasEnded = "ended" in root.dataset;
let isQueued = false;
let countdown = null;

function setText(element, text) {
  // Unchanged text is not announced again.
  if (element && element.textContent !== text) element.textContent = text;
}

function showRun(run) {
  hasEnded = run.has_ended;
  isQueued = run.state === "queued";
  const badge = find("state").querySelector(".state");
  badge.dataset.state = run.state;
  setText(badge, run.state);
  setText(find("step"), run.last_step.toLocaleString("en-US"));
  setText(find("steps"), run.num_steps.toLocaleString("en-US"));
  find("bar").value = run.last_step;
  const left = run.seconds_left;
  setText(find("left"), left === null ? "" : `${duration(left)} left`);
  find("notice").hidden = !run.notice;
  setText(find("notice"), run.notice);
  find("failure").hidden = run.state !== "failed";
  setText(find("reason"), run.fail_reason);
  find("paused").hidden = run.state !== "paused";
  setText(find("paused-at"), run.last_step.toLocaleString("en-US"));
  setText(find("pause-reason"), run.pause_reason);
  show("stop", !run.has_ended && run.state !== "stopping");
  show("pause", ["starting", "running"].includes(run.state));
  show("resume", run.state === "paused");
}

// A viewer has no such buttons.
function show(button, isOffered) {
  const element = find(button);
  if (element) element.hidden = !isOffered;
}

const LINKS = {
  connecting: () => "connecting",
  "catching-up": () => "catching up",
  live: () => (hasEnded ? "complete" : "live"),
  polling: () => "live, every 4 s",
  refused: () => "no longer yours to watch: reload the page",
};

function showLink({ name, retryIn }) {
  clearInterval(countdown);
  const element = find("link");
  element.dataset.link = name === "live" && hasEnded ? "complete" : name;
  if (name !== "offline") {
    setText(element, LINKS[name]());
    return;
  }
  const until = Date.now() + retryIn;
  const tick = () => {
    const seconds = Math.max(0, Math.ceil((until - Date.now()) / 1000));
    setText(element, `offline, retrying in ${seconds} s`);
  };
  tick();
  countdown = setInterval(tick, 1000);
}

function onFrame(frame) {
  store.apply(frame);
  showRun(frame.run);
  if (find("link").dataset.link === "live") showLink({ name: "live" });
  document.dispatchEvent(new CustomEvent("runframe", { detail: frame }));
  if (store.numLive > MAX_LIVE_STEPS) stream.resync();
}

const scheme = location.protocol === "https:" ? "wss" : "ws";
const wantsHistory = document.querySelector("[data-charts]") !== null;
const stream = new RunStream({
  socketUrl: `${scheme}://${location.host}${root.dataset.socket}`,
  httpUrl: root.dataset.stream,
  after: wantsHistory ? 0 : Number(root.dataset.seq),
  epoch: Number(root.dataset.epoch),
  onFrame,
  onLink: showLink,
  env: {
    WebSocket: window.WebSocket,
    fetch: window.fetch.bind(window),
    setTimeout: window.setTimeout.bind(window),
    clearTimeout: window.clearTimeout.bind(window),
    random: Math.random,
  },
});

// A place in the queue changes without anything happening to this run.
setInterval(async () => {
  if (!isQueued || document.hidden) return;
  const { seq, epoch } = stream;
  const url = `${root.dataset.stream}?after=${seq}&epoch=${epoch ?? 0}`;
  const answer = await fetch(url).catch(() => null);
  if (answer?.ok && isQueued) showRun((await answer.json()).run);
}, QUEUE_LOOK_EVERY);

window.addEventListener("online", () => stream.retryNow());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) stream.retryNow();
});
stream.start();
