// On every page: menus, theme choice, shortcuts, forms sent once, relative times.

import { isPlain, isTyping } from "./keys.js";

function openDialog(id) {
  const dialog = document.getElementById(id);
  if (dialog && !dialog.open) dialog.showModal();
}

function focusSearch(event) {
  const search = document.querySelector("[data-search], input[type=search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select?.();
}

function closeMenus(except) {
  for (const menu of document.querySelectorAll("[data-menu][open]")) {
    if (menu !== except) menu.open = false;
  }
}

function closeMenuByKey() {
  const menu = document.querySelector("[data-menu][open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
}

// The command palette, loaded when it is first opened.
async function openPalette() {
  const palette = await import("./palette.js");
  palette.open();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeMenuByKey();
  const isCommand =
    (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;
  if (isCommand && event.key === "k" && document.getElementById("palette")) {
    event.preventDefault();
    openPalette();
  }
  if (!isPlain(event) || isTyping(event.target)) return;
  if (event.key === "/") focusSearch(event);
  if (event.key === "?") openDialog("shortcuts");
});

document.addEventListener("click", (event) => {
  closeMenus(event.target.closest("[data-menu]"));
  const opener = event.target.closest("[data-open-dialog]");
  if (opener) openDialog(opener.dataset.openDialog);
  const isPlainClick = event.button === 0 && isPlain(event) && !event.shiftKey;
  if (isPlainClick && event.target.closest("[data-palette]")) {
    event.preventDefault();
    openPalette();
  }
  const term = isPlainClick && event.target.closest("[data-about]");
  if (term) {
    event.preventDefault();
    import("./about.js").then((about) => about.show(term));
  }
  // A click on the backdrop lands on the dialog itself.
  if (event.target instanceof HTMLDialogElement) event.target.close();
});

if (/Mac|iPhone|iPad/.test(navigator.platform)) {
  for (const key of document.querySelectorAll("[data-palette-key]")) {
    key.textContent = "⌘K";
  }
}

// Notifications: the panel is requested when it opens, which marks ended runs as seen.
document.addEventListener(
  "toggle",
  async ({ target }) => {
    if (!target.matches?.("[data-notifications]") || !target.open) return;
    const answer = await fetch(target.dataset.notifications).catch(() => null);
    if (!answer?.ok || answer.redirected) return;
    target.querySelector("[data-notifications-panel]").innerHTML = await answer.text();
    ageTimes();
    refreshStatus();
  },
  true,
);

// The pill and the number of notifications, while a page stays open.
const STATUS_MS = 60_000;

async function refreshStatus() {
  const status = document.querySelector("[data-status]");
  if (!status || document.hidden) return;
  const answer = await fetch(status.dataset.status).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const [pill, newer] = [status, page].map((each) => each.querySelector(".pill"));
  if (!newer) return;
  pill.className = newer.className;
  Object.assign(pill.dataset, newer.dataset);
  pill.innerHTML = newer.innerHTML;
  const [mine, current] = [status, page].map((each) => each.querySelector("summary"));
  if (mine.innerHTML !== current.innerHTML) mine.innerHTML = current.innerHTML;
}

setInterval(refreshStatus, STATUS_MS);
document.addEventListener("visibilitychange", refreshStatus);

for (const radio of document.querySelectorAll(".theme-choice input")) {
  radio.checked = radio.value === window.cohortTheme.chosen();
  radio.addEventListener("change", () => window.cohortTheme.choose(radio.value));
}

// A form whose button has data-busy-text is sent once. The button is not disabled, which
// would drop its value and the focus.
document.addEventListener("submit", (event) => {
  const button = event.target.querySelector("button[data-busy-text]");
  if (!button || event.defaultPrevented) return;
  if (event.target.dataset.sent !== undefined) {
    event.preventDefault();
    return;
  }
  event.target.dataset.sent = "";
  button.dataset.idleText = button.textContent;
  if (!event.submitter || event.submitter === button) {
    button.textContent = button.dataset.busyText;
  }
});

// Empty and default values stay out of a filtered list's URL.
document.addEventListener("formdata", ({ target, formData }) => {
  if (!target.matches("[data-short-address]")) return;
  for (const [name, value] of [...formData]) {
    const initial = target.elements[name]?.dataset?.default;
    if (value === "" || value === initial) formData.delete(name);
  }
});

// The back button restores the page with its form marked as sent.
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    const button = form.querySelector("button[data-busy-text]");
    button.textContent = button.dataset.idleText;
  }
});

// On a narrow screen the tabs scroll; keep the current one in view.
for (const tab of document.querySelectorAll(
  ":is(.page-tabs, .settings-nav) [aria-current]",
))
  tab.scrollIntoView({ inline: "center", block: "nearest" });

// Relative times are updated while a page is open; the title is in local time.
const UNITS = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
];

function ago(milliseconds) {
  const seconds = Math.max(0, milliseconds / 1000);
  for (const [length, unit] of UNITS) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit} ago`;
  }
  return "just now";
}

function ageTimes() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const then = new Date(time.dateTime);
    const text = ago(Date.now() - then);
    if (time.textContent !== text) time.textContent = text;
    if (time.dataset.ago === "") {
      time.title = then.toLocaleString(undefined, {
        dateStyle: "medium",
        timeStyle: "long",
      });
      time.dataset.ago = "local";
    }
  }
}

ageTimes();
setInterval(ageTimes, 15_000);
document.addEventListener("htmx:afterSettle", ageTimes);

// htmx logs replaced requests as errors; an empty `error` prevents that.
document.addEventListener("htmx:beforeSend", ({ detail }) => {
  const { xhr } = detail;
  const abort = xhr.abort.bind(xhr);
  xhr.abort = () => {
    detail.error = "";
    abort();
  };
});
