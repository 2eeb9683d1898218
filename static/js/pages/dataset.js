// Rows open in a drawer, which has an address; and copies the full hash of a version.

import "../copy.js";
import { bindKeys } from "../keys.js";

const findDrawer = () => document.getElementById("row-drawer");
const isOpen = () => Boolean(findDrawer() && !findDrawer().hidden);
const findRow = () => document.querySelector("[data-rows] tr.is-chosen");

function mark(row) {
  const before = findRow();
  before?.classList.remove("is-chosen");
  before?.removeAttribute("aria-current");
  row?.classList.add("is-chosen");
  row?.setAttribute("aria-current", "true");
}

const readNumber = (address) => new URL(address, location.href).searchParams.get("row");

async function show(address) {
  const wasRendered = findDrawer().querySelector("[data-rendered]")?.open ?? false;
  mark(document.getElementById(`row-${readNumber(address)}`));
  await window.htmx.ajax("GET", address, { target: "#row-drawer", swap: "outerHTML" });
  const rendered = findDrawer().querySelector("[data-rendered]");
  if (rendered) rendered.open = wasRendered;
  prepare();
  document.getElementById("row-drawer-title")?.focus({ preventScroll: true });
}

function prepare() {
  const steps = findDrawer()?.querySelector("[data-steps]");
  if (steps) steps.hidden = !findRow();
}

async function open(link) {
  history.pushState(null, "", link.href);
  await show(link.href);
}

function close() {
  const link = findRow()?.querySelector("[data-row]");
  findDrawer().hidden = true;
  mark(null);
  link?.focus();
}

function step(delta) {
  const rows = [...document.querySelectorAll("[data-rows] tr[id]")];
  const next = rows[rows.indexOf(findRow()) + delta];
  if (!next || !isOpen()) return;
  next.scrollIntoView({ block: "nearest" });
  open(next.querySelector("[data-row]"));
}

// The address may be one without a row, or of another row.
async function follow() {
  if (!findDrawer()) return;
  if (readNumber(location.href) === null) close();
  else await show(location.href);
}

// A click beside the link too, but not one that selects text.
function findLink({ target }) {
  const row = target.closest("[data-rows] tr[id]");
  if (!row || target.closest("a:not([data-row]), button, summary")) return null;
  return getSelection().isCollapsed ? row.querySelector("[data-row]") : null;
}

document.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  const link = findLink(event);
  const closer = event.target.closest("[data-close-row]");
  const stepper = event.target.closest("[data-step]");
  if (link || closer) event.preventDefault();
  if (link) open(link);
  if (stepper) step(Number(stepper.dataset.step));
  if (closer) {
    history.pushState(null, "", closer.href);
    close();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || !isOpen()) return;
  if (!document.querySelector("dialog[open]")) {
    findDrawer().querySelector("[data-close-row]").click();
  }
});

window.addEventListener("popstate", follow);
bindKeys();
prepare();
