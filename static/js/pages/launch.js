// The launch form: shows the field for another model when it applies, marks where each
// value comes from and whether it has an effect, and focuses the first error. htmx
// updates the estimate.

import { keepPreview } from "../datasets/prompt_preview.js";
import { findUnused, isSame, showText } from "../launch/settings.js";
import { keepToml } from "../launch/toml.js";

const form = document.getElementById("launch-form");
const model = form.elements.model;
const other = form.querySelector("[data-other-model]");

function showOther() {
  if (other) other.hidden = model.value !== ""; // a fork keeps its model
}

model.addEventListener("change", showOther);
showOther();

// Loading other settings keeps the choices above them.
const start = document.getElementById("start-form");

function keepChoices(target) {
  const chosen = {
    name: form.elements.name.value,
    model: model.value || form.elements.model_other.value,
    dataset: form.elements.dataset.value,
    recipe: form.elements.recipe.value,
  };
  for (const [name, value] of Object.entries(chosen)) {
    const field =
      target.querySelector(`input[name="${name}"]`) ?? addHidden(target, name);
    field.value = value;
    field.disabled = value === "";
  }
  for (const old of target.querySelectorAll('input[name^="eval-"]')) old.remove();
  for (const { name, value } of form.querySelectorAll('[name^="eval-"]'))
    addHidden(target, name).value = value;
}

function addHidden(target, name) {
  const field = document.createElement("input");
  field.type = "hidden";
  field.name = name;
  target.append(field);
  return field;
}

start.addEventListener("submit", () => {
  keepChoices(start);
  // A preset has its own reward, unless the team does not have it.
  start.querySelector('input[name="recipe"]').disabled = true;
});
const recipe = document.querySelector("[data-start-recipe]");
recipe?.addEventListener("submit", () => keepChoices(recipe));

// Updates the notes of launch_field.html while typing.
// Not form.dataset: that is the field of this name.
const startName = form.getAttribute("data-start");
const unusedTable = JSON.parse(document.getElementById("unused-table").textContent);
const recipeFacts = JSON.parse(document.getElementById("recipe-facts").textContent);
const settings = [...form.querySelectorAll("[data-setting]")];

function textOf(setting) {
  const control = form.elements[setting.dataset.setting];
  if (!control) return "";
  if (control.type === "checkbox") return control.checked ? "on" : "";
  return control.value.replaceAll("\r\n", "\n");
}

function mark({ kind, default: byDefault, from }, text) {
  const isChanged = !isSame(kind, text, byDefault);
  const shownDefault = showText(kind, byDefault);
  if (!startName) return isChanged ? `default ${shownDefault}` : "";
  if (!isSame(kind, text, from))
    return `changed from ${startName}: ${showText(kind, from)}`;
  return isChanged ? `from ${startName}, default ${shownDefault}` : "";
}

function showMarks() {
  for (const setting of settings) {
    const element = setting.querySelector("[data-mark]");
    if (!element) continue;
    const text = textOf(setting);
    const sentence = mark(setting.dataset, text);
    element.textContent = sentence;
    element.hidden = sentence === "";
    const isChanged = !isSame(setting.dataset.kind, text, setting.dataset.from);
    setting.classList.toggle("is-changed", isChanged);
    setting.querySelector("[data-reset]").hidden = !isChanged;
  }
  for (const part of form.querySelectorAll("[data-part]")) {
    const changed = [...part.querySelectorAll("[data-kind]")].filter(
      (setting) => !isSame(setting.dataset.kind, textOf(setting), setting.dataset.from),
    ).length;
    const count = part.querySelector("[data-num-changed]");
    count.textContent = `${changed} changed`;
    count.hidden = changed === 0;
  }
}

function showUnused() {
  const texts = new Map([
    ...Object.entries(recipeFacts[form.elements.recipe.value] ?? {}),
    ...settings.map((one) => [one.dataset.setting, textOf(one)]),
  ]);
  // A phase may use any setting.
  const hasPhases = form.elements.phases.value.trim() !== "";
  const unused = hasPhases ? new Map() : findUnused(unusedTable, texts);
  for (const setting of settings) {
    const reason = unused.get(setting.dataset.setting);
    const element = setting.querySelector("[data-unused]");
    setting.classList.toggle("is-unused", reason !== undefined);
    element.hidden = reason === undefined;
    if (reason !== undefined) element.textContent = `not used: ${reason}`;
  }
}

function show() {
  showMarks();
  showUnused();
}

// Settings that depend on the rows follow the dataset until they are edited.
const fit = form.querySelector("[data-fit]");
let fitted = JSON.parse(document.getElementById("fitted").textContent);

async function fitRows() {
  const body = new FormData(form);
  const answer = await fetch(fit.dataset.fit, { method: "POST", body }).catch(
    () => null,
  );
  // The form check reports values that do not fit.
  if (!answer?.ok) return;
  const { texts, sentences } = await answer.json();
  if (body.get("dataset") !== form.elements.dataset.value) return;
  for (const setting of settings) {
    const { setting: path, kind, from } = setting.dataset;
    const text = textOf(setting);
    const isUntouched = isSame(kind, text, fitted[path] ?? from);
    if (path in texts && isUntouched) form.elements[path].value = texts[path];
  }
  fitted = texts;
  fit.hidden = sentences === "";
  fit.querySelector("[data-fit-sentences]").textContent = sentences;
  form.dispatchEvent(new Event("input", { bubbles: true }));
}

form.elements.dataset.addEventListener("change", fitRows);

form.addEventListener("input", show);

form.addEventListener("click", (event) => {
  const setting = event.target.closest("[data-reset]")?.closest("[data-setting]");
  if (!setting) return;
  const control = form.elements[setting.dataset.setting];
  if (control.type === "checkbox") control.checked = setting.dataset.from !== "";
  else control.value = setting.dataset.from;
  control.focus(); // the button will be hidden
  control.dispatchEvent(new Event("input", { bubbles: true }));
});
// A restored page has its typed values only now.
window.addEventListener("pageshow", () => {
  show();
  showOther();
});

keepPreview(form);
keepToml(form);

const wrong = form.querySelector(
  "[data-view-fields] [aria-invalid=true], [data-problems]",
);
if (wrong) wrong.focus();
