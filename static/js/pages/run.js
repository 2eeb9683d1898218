// The frame of every run page: follows the run's stream and updates the header.

import { setText } from "../live/announce.js";
import { RunState } from "../live/run_state.js";
import { RunStore } from "../live/store.js";
import { RunStream } from "../live/stream.js";
import { showNotice } from "../live/versions.js";

const root = document.querySelector("[data-run]");
const find = (name) => document.querySelector(`[data-run-${name}]`);

const QUEUE_INTERVAL_MS = 10_000;
const RESTING = new Set(["finished", "stopped", "failed", "paused", "lost"]);

export const store = new RunStore();
let { title } = root.dataset;
let isAtRest = RESTING.has(find("state").querySelector(".state").dataset.state);
let countdown = null;

function showRun(run) {
  isAtRest = RESTING.has(run.state);
  const badge = find("state").querySelector(".state");
  badge.dataset.state = run.state;
  setText(badge, run.state);
  // Tabs may have a title of their own.
  if (document.title.startsWith(title)) {
    document.title = run.title + document.title.slice(title.length);
    ({ title } = run);
  }
  setText(find("step"), run.last_step.toLocaleString("en-US"));
  setText(find("steps"), run.num_steps.toLocaleString("en-US"));
  find("bar").hidden = run.has_ended;
  find("bar").max = run.num_steps;
  find("bar").value = run.last_step;
  setText(find("left"), run.phrase);
  if (find("notice")) showSituation(run);
  show("stop", !run.has_ended && run.state !== "stopping");
  show("cancel", !run.has_ended);
  show("archive", run.has_ended);
  show("trash", run.has_ended);
  show("pause", ["starting", "running"].includes(run.state));
  show("resume", run.state === "paused");
  followPause(run);
  show("queued", run.state === "queued");
  show("hold", !run.on_hold);
  show("release", run.on_hold);
  const priority = find("priority");
  if (priority && priority !== document.activeElement) {
    priority.value = PRIORITIES[run.priority];
    find("priority-version").value = priority.selectedOptions[0].dataset.version;
  }
}

// On the Overview: what it waits for.
function showSituation(run) {
  const isWarning = run.state === "lost" || run.silence !== "";
  find("notice").className = isWarning
    ? "notice notice-warning"
    : "run-notice text-quiet";
  find("notice").hidden = !run.notice;
  setText(find("notice"), run.notice);
  find("stopped").hidden = !run.stop_reason;
  setText(find("stopped"), run.stop_reason);
}

function rename(isOpen) {
  const form = find("rename");
  form.hidden = !isOpen;
  find("name").hidden = isOpen;
  find("rename-open").hidden = isOpen;
  if (isOpen) form.elements.name.select();
  else find("rename-open").focus();
}

find("rename-open")?.addEventListener("click", () => rename(true));
find("name").addEventListener("dblclick", () => find("rename") && rename(true));
find("rename")?.addEventListener("keydown", ({ key, currentTarget: form }) => {
  if (key !== "Escape") return;
  form.reset();
  rename(false);
});

const PRIORITIES = { "-1": "low", 0: "normal", 1: "high" };

// The dialog is for one pause: the next one has its own reason and settings.
function followPause(run) {
  const form = document.getElementById("resume-form");
  if (!form) return;
  const { attempt, max_error_share: share } = form.elements;
  const isSame = attempt.value === String(run.attempt);
  if (run.state !== "paused" || !isSame) form.closest("dialog").close();
  if (isSame) return;
  attempt.value = run.attempt;
  share.value = run.errors_allowed ?? "";
}

// A viewer has no such buttons.
function show(button, isOffered) {
  const element = find(button);
  if (element) element.hidden = !isOffered;
}

// About the page: next to an ended run they would read as the run's state.
const UPDATES = { live: "live updates", polling: "updates every 4 s" };
const LINKS = {
  connecting: "connecting",
  "catching-up": "loading updates",
  refused: "no access: reload the page",
  outdated: "not live: reload the page",
  ahead: "waiting for the server's update",
};

function showLink({ name, retryIn }) {
  clearInterval(countdown);
  showNotice(find("version"), name);
  if (name === "outdated" || name === "refused") state.leaveQueue();
  const element = find("link");
  element.dataset.link = name;
  if (name !== "offline") {
    setText(element, LINKS[name] ?? (isAtRest ? "" : UPDATES[name]));
    return;
  }
  const until = Date.now() + retryIn;
  // Hidden from screen readers, as it changes each second.
  const seconds = document.createElement("span");
  seconds.ariaHidden = "true";
  const tick = () => {
    const left = Math.max(0, Math.ceil((until - Date.now()) / 1000));
    seconds.textContent = `, retrying in ${left} s`;
  };
  element.replaceChildren("offline", seconds);
  tick();
  countdown = setInterval(tick, 1000);
}

function onFrame(frame, { isBehind }) {
  const isRewound = store.apply(frame);
  if (!isBehind) state.follow(frame);
  const { link } = find("link").dataset;
  if (link in UPDATES) showLink({ name: link });
  const detail = { ...frame, isBehind };
  document.dispatchEvent(new CustomEvent("runframe", { detail }));
  // Superseded steps are drawn in grey: a snapshot has them.
  if (isRewound) stream.resync();
}

const state = new RunState({
  isSilent: find("left").hasAttribute("data-silent"),
  read: async () => {
    const answer = await fetch(stream.httpUrlWithQuery).catch(() => null);
    return answer?.ok ? (await answer.json()).run : null;
  },
  show: showRun,
});

const scheme = location.protocol === "https:" ? "wss" : "ws";
const wantsHistory = document.querySelector("[data-charts]") !== null;
const stream = new RunStream({
  socketUrl: `${scheme}://${location.host}${root.dataset.socket}`,
  httpUrl: root.dataset.stream,
  after: wantsHistory ? 0 : Number(root.dataset.seq),
  attempt: Number(root.dataset.attempt),
  shown: Number(root.dataset.seq),
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

setInterval(() => {
  if (!document.hidden) state.refresh();
}, QUEUE_INTERVAL_MS);

// The button is for browsers without scripts.
find("priority-set")?.setAttribute("hidden", "");
find("priority")?.addEventListener("change", ({ target }) =>
  target.form.requestSubmit(),
);

window.addEventListener("online", () => stream.retryNow());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) stream.retryNow();
});
stream.start();
