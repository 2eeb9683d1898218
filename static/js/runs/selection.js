// Selected runs, all that match, and actions on them. Rows may be swapped at any time,
// so only listeners on the document are kept.

const list = () => document.querySelector("[data-run-list]");
const ticks = () => [...list().querySelectorAll("input[name=runs]")];
// In selection order: the first is the baseline of a comparison.
const ticked = new Set();
const everything = () => list().querySelector("[data-tick-found]");

function count() {
  const all = everything();
  if (all?.checked) return Number(all.value);
  return ticks().filter((tick) => tick.checked).length;
}

export function showSelection() {
  const chosen = ticks().filter((tick) => tick.checked);
  const isAll = Boolean(everything()?.checked);
  for (const tick of ticks()) {
    tick.closest("tr").classList.toggle("is-selected", tick.checked || isAll);
  }
  for (const head of list().querySelectorAll("[data-tick-all]")) {
    head.checked = chosen.length > 0 && chosen.length === ticks().length;
    head.indeterminate = chosen.length > 0 && !head.checked;
  }
  const num = count();
  const bar = list().querySelector("[data-bar]");
  if (!bar) return;
  bar.hidden = num < 1;
  bar.querySelector("[data-compare]").disabled = num < 2;
  for (const button of bar.querySelectorAll("[data-act]")) button.disabled = num < 1;
  bar.querySelector("[data-selected]").textContent =
    `${num.toLocaleString("en")} selected`;
}

function keepOrder() {
  for (const { value, checked } of ticks()) {
    if (checked) ticked.add(value);
    else ticked.delete(value);
  }
}

function onChange({ target }) {
  if (!list()?.contains(target)) return;
  if (target.matches("[data-tick-all]")) {
    for (const tick of ticks()) tick.checked = target.checked;
  }
  keepOrder();
  if (target.matches("[type=checkbox]")) showSelection();
}

function onClick(event) {
  const { target } = event;
  const star = target.closest("[data-star]");
  if (star) {
    event.preventDefault();
    toggleStar(star);
  }
  const asking = target.closest("[data-ask]");
  if (asking) {
    event.preventDefault();
    const dialog = document.getElementById(asking.dataset.ask);
    const num = count();
    dialog.querySelector("[data-ask-count]").textContent =
      num === 1 ? "1 run" : `${num.toLocaleString("en")} runs`;
    dialog.showModal();
  }
  const closing = target.closest("[data-close-dialog]");
  if (closing) closing.closest("dialog").close();
}

async function toggleStar(star) {
  const form = star.form;
  const body = new FormData();
  body.set(
    "csrfmiddlewaretoken",
    form.querySelector("[name=csrfmiddlewaretoken]").value,
  );
  body.set(star.name, star.value);
  const wasStarred = star.name === "unstar";
  setStar(star, !wasStarred);
  try {
    const headers = { Accept: "application/json" };
    // Buttons named "action" shadow the form's own property.
    const url = form.getAttribute("action");
    const answer = await fetch(url, { method: "POST", body, headers });
    if (!answer.ok) throw new Error(`Failed to save the star: HTTP ${answer.status}.`);
  } catch (error) {
    console.warn(error);
    setStar(star, wasStarred);
  }
}

function setStar(star, isStarred) {
  star.name = isStarred ? "unstar" : "star";
  star.setAttribute("aria-pressed", String(isStarred));
}

function onSubmit(event) {
  if (event.target !== list()) return;
  if (event.submitter?.value !== "compare" || everything()?.checked) return;
  event.preventDefault();
  keepOrder(); // a browser that came back restores ticks without a change
  const here = new Set(ticks().map((tick) => tick.value));
  const runs = [...ticked].filter((run) => here.has(run)).join(",");
  window.location.assign(`${list().dataset.compareUrl}?runs=${runs}`);
}

function onKey(event) {
  if (event.key !== "Enter" || !event.target.matches("[data-tag]")) return;
  event.preventDefault(); // the form's first button compares
  const button = list().querySelector("[data-act][value=tag]");
  if (!button.disabled) button.click();
}

export function startSelection() {
  document.addEventListener("change", onChange);
  document.addEventListener("click", onClick);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("keydown", onKey);
  document.addEventListener("htmx:afterSettle", () => list() && showSelection());
  // Back in the history restores ticks without an event.
  window.addEventListener("pageshow", showSelection);
  showSelection();
}
