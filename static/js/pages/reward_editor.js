// The rules of a reward as a form, and the samples that they score.

const form = document.querySelector("#reward-form");
const editor = document.querySelector("#editor");

// A check swaps the errors of a field and leaves the field alone: mark it here.
document.addEventListener("htmx:oobAfterSwap", ({ target }) => {
  if (!target.id.endsWith("_error")) return;
  const isWrong = target.childElementCount > 0;
  for (const field of document.querySelectorAll(
    `[aria-describedby~="${CSS.escape(target.id)}"]`,
  ))
    field.ariaInvalid = isWrong ? "true" : null;
});

// The formula and a rule's name are swapped too, but not while they are typed.
document.addEventListener("htmx:oobBeforeSwap", ({ target, detail }) => {
  if (target === document.activeElement && target.matches("input"))
    detail.shouldSwap = false;
});

// A check follows a change, which a browser reports only when a field is left. While a
// function is typed, it is to be recognised meanwhile.
const TYPING_MS = 400;
let timer = 0;

document.addEventListener("input", ({ target }) => {
  if (!target.matches("#editor [data-is-program]")) return;
  clearTimeout(timer);
  timer = setTimeout(
    () => target.dispatchEvent(new Event("change", { bubbles: true })),
    TYPING_MS,
  );
});

// A field that is left sends its check by itself.
document.addEventListener("change", () => clearTimeout(timer));

// A program has line numbers, and Tab indents it until Escape is pressed.
const INDENT = "    ";
let leaves = false;

function numberLines(program) {
  const numbers = program.previousElementSibling;
  const count = program.value.split("\n").length;
  numbers.textContent = Array.from({ length: count }, (_, at) => at + 1).join("\n");
  numbers.style.height = `${program.offsetHeight}px`;
  numbers.scrollTop = program.scrollTop;
}

function numberAll() {
  for (const program of document.querySelectorAll("[data-is-program]"))
    numberLines(program);
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) numberLines(target);
});

function watchPrograms() {
  resized.disconnect();
  for (const program of document.querySelectorAll("[data-is-program]"))
    resized.observe(program);
}

document.addEventListener("input", ({ target }) => {
  if (target.matches("[data-is-program]")) numberLines(target);
});
document.addEventListener(
  "scroll",
  ({ target }) => {
    if (target instanceof Element && target.matches("[data-is-program]"))
      target.previousElementSibling.scrollTop = target.scrollTop;
  },
  true,
);
document.addEventListener("htmx:afterSettle", () => {
  numberAll();
  watchPrograms();
});
numberAll();
watchPrograms();

document.addEventListener("keydown", (event) => {
  const { key, shiftKey, target } = event;
  if (!target.matches("[data-is-program]")) return;
  if (key === "Tab" && !shiftKey && !leaves) {
    event.preventDefault();
    target.setRangeText(INDENT, target.selectionStart, target.selectionEnd, "end");
    target.dispatchEvent(new Event("input", { bubbles: true }));
  }
  leaves = key === "Escape";
});

// Enter applies a field; it does not post the page.
document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (key !== "Enter" || !target.matches("form[method=post] input")) return;
  if (!target.matches("#editor *, #samples *, [data-gallery-search]")) return;
  event.preventDefault();
  target.blur(); // a change is reported once, by the browser
  target.focus();
});

// What is open stays open when it is swapped.
const opened = new Set();

document.addEventListener(
  "toggle",
  ({ target }) => {
    const key = target.dataset?.keepsOpen;
    if (!key || !target.isConnected) return;
    if (target.open) opened.add(key);
    else opened.delete(key);
  },
  true,
);

function reopen(root) {
  for (const each of root.querySelectorAll?.("[data-keeps-open]") ?? [])
    if (opened.has(each.dataset.keepsOpen)) each.open = true;
}

document.addEventListener("htmx:afterSwap", ({ target }) => reopen(target));
document.addEventListener("htmx:oobAfterSwap", ({ target }) => reopen(target));

// The gallery of rules

function showRules(gallery) {
  const words = gallery.querySelector("[data-gallery-search]").value.toLowerCase();
  const category = gallery.querySelector("[data-category][aria-pressed=true]");
  let isEmpty = true;
  for (const rule of gallery.querySelectorAll(".gallery-rule")) {
    const isIn = ["", rule.dataset.category].includes(category.dataset.category);
    const isFound = words.split(/\s+/).every((w) => rule.dataset.words.includes(w));
    rule.hidden = !(isIn && isFound);
    isEmpty &&= rule.hidden;
  }
  gallery.querySelector("[data-gallery-empty]").hidden = !isEmpty;
}

document.addEventListener("input", ({ target }) => {
  if (target.matches("[data-gallery-search]")) showRules(target.closest("dialog"));
});

let isAdding = false;

document.addEventListener("click", ({ target }) => {
  const dialog = target.closest("dialog");
  const category = target.closest("button[data-category]");
  if (category) {
    for (const each of dialog.querySelectorAll("button[data-category]"))
      each.ariaPressed = String(each === category);
    showRules(dialog);
  }
  isAdding = target.closest("[value^='add:']") !== null;
  if (isAdding || target.closest("[data-close-dialog], [value=read_json]"))
    dialog?.close();
});

// Buttons swap the rules. Swaps of parts, as of errors and scores, change no rule.
document.addEventListener("htmx:afterRequest", ({ detail }) => {
  if (!editor || detail.target !== editor) return;
  if (detail.requestConfig.elt === editor) return; // `elt` is, if its button is gone
  editor.dispatchEvent(new Event("rules-changed"));
  if (isAdding) editor.querySelector(".rule:last-child [name$=-weight]")?.focus();
  isAdding = false;
});

// Rules are dragged into another order.
let dragged = null;

function ruleAt(event) {
  return dragged && event.target.closest?.(".rule");
}

function unmark() {
  for (const rule of document.querySelectorAll("[data-drop]")) delete rule.dataset.drop;
}

document.addEventListener("dragstart", ({ target, dataTransfer }) => {
  if (!target.matches?.(".rule-grip")) return;
  dragged = target.closest(".rule");
  dataTransfer.effectAllowed = "move";
  dataTransfer.setDragImage(dragged, 0, 0);
});

document.addEventListener("dragover", (event) => {
  const rule = ruleAt(event);
  if (!rule) return;
  event.preventDefault();
  unmark();
  rule.dataset.drop = "";
});

document.addEventListener("drop", (event) => {
  const rule = ruleAt(event);
  if (!rule) return;
  event.preventDefault();
  const action = `move:${dragged.dataset.rule}:${rule.dataset.rule}`;
  window.htmx.trigger(editor, "htmx:abort"); // a check of the order before
  window.htmx.ajax("POST", window.location.href, {
    source: editor.closest("form"),
    target: "#editor",
    values: { action },
  });
});

document.addEventListener("dragend", () => {
  dragged = null;
  unmark();
});

// A narrow screen shows either the rules or the samples.
document.addEventListener("click", ({ target }) => {
  const view = target.closest("[data-shows]");
  if (!view) return;
  form.setAttribute("data-view", view.dataset.shows); // `dataset` is a field of the form
  for (const each of form.querySelectorAll("[data-shows]"))
    each.ariaPressed = String(each === view);
});

// Scoring that takes a while is shown, and can be stopped.
const SLOW_MS = 400;
const progress = document.querySelector(".editor-progress");
let pending = 0;
let slow = 0;
let revision = 0; // of the rules: scores of others have no place to go

function isScoring({ detail }) {
  return detail.requestConfig?.path.endsWith("/rewards/scores") ?? false;
}

// Other samples make scores on their way useless.
document.addEventListener("htmx:beforeRequest", ({ detail }) => {
  if (detail.target.id === "samples")
    window.htmx.trigger("#sample-scores", "htmx:abort");
});

document.addEventListener("htmx:beforeSend", (event) => {
  if (!progress || !isScoring(event)) return;
  pending += 1;
  event.detail.xhr.revision = revision;
  clearTimeout(slow);
  slow = setTimeout(() => {
    progress.hidden = false;
  }, SLOW_MS);
});

document.addEventListener("htmx:beforeSwap", (event) => {
  if (isScoring(event) && event.detail.xhr.revision !== revision)
    event.detail.shouldSwap = false;
});

// What was found of the rules before an edit says nothing of them now.
function clearFindings() {
  document.querySelector("#samples-findings")?.replaceChildren();
  const rows = document.querySelector("#row-findings");
  if (!rows) return;
  const checking = document.createElement("span");
  checking.className = "text-quiet";
  checking.textContent = "Checking…";
  rows.replaceChildren(checking);
}

function offerCheck({ target }) {
  if (target.id !== "row-findings") return;
  const again = document.createElement("button");
  again.type = "button";
  again.className = "link-button";
  again.textContent = "Check again";
  again.addEventListener("click", () => {
    clearFindings();
    window.htmx.trigger(target, "check-again");
  });
  target.replaceChildren("Rows not checked. ", again);
}

document.addEventListener("htmx:responseError", offerCheck);
document.addEventListener("htmx:sendError", offerCheck);

editor?.addEventListener("input", clearFindings);
editor?.addEventListener("rules-changed", () => {
  revision += 1;
  clearFindings();
});

document.addEventListener("htmx:afterRequest", (event) => {
  if (!progress || !isScoring(event)) return;
  pending -= 1;
  if (pending > 0) return;
  clearTimeout(slow);
  progress.hidden = true;
});

document.addEventListener("click", ({ target }) => {
  if (target.closest("[data-stops-scoring]"))
    window.htmx.trigger("#sample-scores", "htmx:abort");
});
