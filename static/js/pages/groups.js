// The reader of a step's groups: list, open group, completions, and the keys for them.
import "../copy.js";
import { drawDifferences } from "../group/differences.js";
import { bindSwipes } from "../group/swipe.js";
import { drawTokenView } from "../group/token_view.js";
import { bindKeys, isPlain, isTyping, moveIndex } from "../keys.js";

bindKeys();

const REFRESH_MS = 3_000; // at most one new step in this time
const OF_A_GROUP = /\/groups\/\d+\/\d+\/$/;

const find = (selector) => document.querySelector(selector);
const findAll = (selector) => [...document.querySelectorAll(selector)];

// The list stays when another group is opened; the address tells which one is.
function markOpen() {
  const reader = find("[data-reader]");
  const links = findAll(".group-link");
  const isGroup = OF_A_GROUP.test(location.pathname);
  reader?.toggleAttribute("data-open", isGroup);
  if (isGroup) stopFollowing(reader);
  const open = isGroup
    ? links.find(({ pathname }) => pathname === location.pathname)
    : links[0];
  for (const link of links) {
    if (link === open) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  const list = find(".reader-list");
  if (!open || !list) return;
  const place = open.getBoundingClientRect();
  const frame = list.getBoundingClientRect();
  if (place.bottom > Math.min(frame.bottom, innerHeight)) {
    list.scrollTop += place.top - frame.top - frame.height / 3;
  }
}

// Newer steps do not replace a group that was chosen.
function stopFollowing(reader) {
  delete reader?.dataset.follow;
  const follow = find(".follow[aria-checked=true]");
  if (!follow) return;
  follow.setAttribute("aria-checked", "false");
  follow.href = follow.dataset.newest;
  follow.setAttribute("hx-get", follow.dataset.newest);
  window.htmx.process(follow);
}

function moveInList(delta) {
  const links = findAll(".group-link");
  const at = links.findIndex((link) => link.hasAttribute("aria-current"));
  const link = links[moveIndex(at, delta, links.length)];
  if (!link || link.hasAttribute("aria-current")) return;
  for (const other of links) other.removeAttribute("aria-current");
  link.setAttribute("aria-current", "true");
  link.focus({ preventScroll: true });
  link.scrollIntoView({ block: "nearest" });
  link.click();
}

function moveInGroup(delta) {
  const rows = findAll("[data-completion]");
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[moveIndex(at, delta, rows.length)];
  row?.focus({ preventScroll: true });
  row?.scrollIntoView({ block: "nearest" });
}

function setOpen(row, isOpen) {
  row.classList.toggle("is-open", isOpen);
  const button = row.querySelector("button[data-toggle-row]");
  button.setAttribute("aria-expanded", String(isOpen));
  document.getElementById(button.getAttribute("aria-controls")).hidden = !isOpen;
}

// The next completion comes to where the last one was read, and opens as that did.
function swipe(touched, delta) {
  const isRow = touched.matches("[data-completion]");
  const from = isRow ? touched : touched.previousElementSibling; // of its details
  const rows = findAll("[data-completion]");
  const row = rows[rows.indexOf(from) + delta];
  if (!row) return;
  if (from.classList.contains("is-open")) {
    setOpen(from, false);
    setOpen(row, true);
  }
  row.focus({ preventScroll: true });
  row.scrollIntoView();
}

bindSwipes("[data-completion], .completion-more", swipe);

function toggleRows() {
  const rows = findAll(".completion-row");
  const one = rows.find((row) => row.contains(document.activeElement));
  const chosen = one ? [one] : rows;
  const isOpen = !chosen.every((row) => row.classList.contains("is-open"));
  for (const row of chosen) setOpen(row, isOpen);
}

function cycleView() {
  const views = findAll("[data-group] [data-view]");
  const at = views.findIndex((view) => view.hasAttribute("aria-current"));
  views[(at + 1) % views.length]?.click();
}

const KEYS = {
  j: () => moveInList(1),
  k: () => moveInList(-1),
  J: () => moveInGroup(1),
  K: () => moveInGroup(-1),
  e: toggleRows,
  v: cycleView,
};

document.addEventListener("keydown", (event) => {
  if (!isPlain(event) || isTyping(event.target)) return;
  if (Object.hasOwn(KEYS, event.key)) KEYS[event.key]();
});

function toggleText(button) {
  const text = document.getElementById(button.getAttribute("aria-controls"));
  const open = text.classList.toggle("is-open");
  button.setAttribute("aria-expanded", String(open));
  button.textContent = open ? "Show less" : "Show all";
}

const ACTS = "a, button, input, textarea, summary, form, .token";

document.addEventListener("click", ({ target }) => {
  const toggle = target.closest("[data-toggle-text]");
  if (toggle) toggleText(toggle);
  const of = target.closest("[data-toggle-row]");
  if (!of || (of.tagName !== "BUTTON" && target.closest(ACTS))) return;
  // A selected text is to be copied.
  if (!getSelection().isCollapsed) return;
  const row = of.closest(".completion-row");
  setOpen(row, !row.classList.contains("is-open"));
});

// A comment is written below its text, not over it.
document.addEventListener(
  "toggle",
  ({ target }) => {
    const row = target.matches?.(".marks-comments[open]") && target.closest("tr");
    if (row) row.classList.add("is-annotated");
  },
  true,
);

document.addEventListener("input", ({ target }) => {
  if (!target.matches("[data-step-slider]")) return;
  find("[data-step-form] [name=step]").value = target.value;
});

// Shows the button only if the text is too long.
function showToggles() {
  for (const button of findAll("[data-toggle-text]")) {
    const text = document.getElementById(button.getAttribute("aria-controls"));
    button.hidden = text.scrollHeight <= text.clientHeight + 1;
  }
}

function openLinked() {
  const linked = location.hash && document.getElementById(location.hash.slice(1));
  const row = linked?.closest?.(".completion-row");
  if (!row) return;
  setOpen(row, true);
  row.classList.add("is-linked");
  linked.scrollIntoView({ block: "nearest" });
}

function drawGroup() {
  const page = find("[data-group]");
  if (!page) return;
  showToggles();
  const visits = page.querySelector(".visits");
  const visit = visits?.querySelector("[aria-current]");
  if (visit) visits.scrollTop = visit.offsetTop - visits.offsetTop;
  drawDifferences(page);
  drawTokenView(page, showToggles);
}

markOpen();
drawGroup();
openLinked();
window.addEventListener("hashchange", openLinked);

// Swapped annotations leave the drawn texts unchanged.
document.addEventListener("htmx:afterSettle", ({ target }) => {
  if (target.id !== "group-pane" && target.id !== "reader") return;
  markOpen();
  drawGroup();
  showNewer();
  const pane = document.getElementById("group-pane");
  if (!pane) return;
  if (pane.getBoundingClientRect().top < 0) pane.scrollIntoView();
  // On a narrow screen the list, which had the focus, is hidden.
  const list = find(".reader-list");
  if (list && !list.offsetParent) {
    find(".group-question")?.focus({ preventScroll: true });
  }
});
document.addEventListener("htmx:historyRestore", () => {
  markOpen();
  drawGroup();
});

let newest = 0;
let refreshed = 0;
let waiting = null;

function showNewer() {
  const shown = Number(find("[data-reader]")?.dataset.newestStep ?? 0);
  const badge = find("[data-newer-step]");
  if (badge) badge.textContent = newest > shown ? newest.toLocaleString("en-US") : "";
}

function follow() {
  waiting = null;
  const { follow: url, newestStep } = find("[data-reader]")?.dataset ?? {};
  if (!url || document.hidden || newest <= Number(newestStep)) return;
  refreshed = Date.now();
  window.htmx.ajax("GET", url, { target: "#reader", swap: "innerHTML" });
}

// run.js dispatches each frame of the stream.
document.addEventListener("runframe", ({ detail }) => {
  const step = Math.max(0, ...(detail.steps ?? []).map((row) => row.step));
  if (step <= newest) return;
  newest = step;
  showNewer();
  if (waiting !== null) return;
  waiting = setTimeout(follow, Math.max(0, refreshed + REFRESH_MS - Date.now()));
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) follow();
});
