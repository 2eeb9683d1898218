// The launch form: loads the settings of another model, dataset or preset into fields
// that were not edited, marks where each value comes from and whether it has an effect,
// and shows errors until they are fixed. htmx requests the settings and the estimate.

import { keepPreview } from "../datasets/prompt_preview.js";
import { keepEnvironment } from "../launch/environment.js";
import { findUnused, isSame, showText } from "../launch/settings.js";
import { keepToml } from "../launch/toml.js";

const form = document.getElementById("launch-form");
const model = form.elements.model;
const other = form.querySelector("[data-other-model]");

function readJson(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

function showOther() {
  if (other) other.hidden = model.value !== ""; // a fork keeps its model
}

model.addEventListener("change", showOther);
showOther();

// A model that was downloaded for this dataset is chosen.
form.addEventListener("htmx:load", ({ target }) => {
  const path = target.dataset.added;
  if (!path) return;
  if (![...model.options].some(({ value }) => value === path))
    model.prepend(new Option("SmolLM2-135M-Instruct", path));
  model.value = path;
  model.dispatchEvent(new Event("change", { bubbles: true }));
});

// What the user chooses stays when the model or the preset brings something else.
const CHOICES = ["model", "dataset", "recipe"];
const chosen = new Set(form.elements.chosen.value.split(",").filter(Boolean));

// Updates the notes of launch_field.html while typing.
let start = readJson("start-values");
const unusedTable = readJson("unused-table");
const recipeFacts = readJson("recipe-facts");
const settings = [...form.querySelectorAll("[data-setting]")];
const shows = form.querySelector("[data-shows-unused]");

function textOf(setting) {
  const control = form.elements[setting.dataset.setting];
  if (!control) return "";
  if (control.type === "checkbox") return control.checked ? "on" : "";
  return control.value.replaceAll("\r\n", "\n");
}

function mark({ kind, default: byDefault, from }, text) {
  const isChanged = !isSame(kind, text, byDefault);
  const shownDefault = showText(kind, byDefault);
  if (!start.name) return isChanged ? `default ${shownDefault}` : "";
  const isEdited = !isSame(kind, text, from);
  if (start.name === "recommended")
    return isEdited ? `recommended ${showText(kind, from)}` : "";
  if (isEdited) return `changed from ${start.name}: ${showText(kind, from)}`;
  return isChanged ? `from ${start.name}, default ${shownDefault}` : "";
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
    showNumSet(part);
  }
}

function showNumSet(part) {
  const label = part.querySelector("[data-num-set]");
  if (!label) return;
  const count = [...part.querySelectorAll("[data-kind]")].filter((setting) => {
    const { kind, from, default: byDefault } = setting.dataset;
    const text = textOf(setting);
    return isSame(kind, text, from) && !isSame(kind, text, byDefault);
  }).length;
  label.textContent = `${count} from ${start.name}`;
  label.hidden = count === 0 || !start.name;
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
  const hidden = form.querySelectorAll(".is-unused:not(.is-changed)").length;
  form.querySelector("[data-num-unused]").textContent = hidden;
  shows.closest("label").hidden = hidden === 0;
}

// A switch writes this option of the chat template where the model's reads it.
const thinking = form.querySelector("[data-thinking]");
const options = form.elements["data.chat_template_kwargs"];

function readOptions() {
  try {
    return JSON.parse(options.value || "{}");
  } catch {
    return null;
  }
}

function showThinking() {
  const value = readOptions()?.enable_thinking;
  thinking.hidden = !start.reads_thinking || options.readOnly || !readOptions();
  thinking.control.checked = value === true;
  thinking.control.indeterminate = value === undefined;
}

thinking.addEventListener("input", () => {
  const enable_thinking = thinking.control.checked;
  options.value = JSON.stringify({ ...readOptions(), enable_thinking });
  options.dispatchEvent(new Event("input", { bubbles: true }));
});

// A reward whose rules need a column that the dataset lacks cannot be chosen. One that
// the user did not choose gives way to the only one that fits.
const neededColumns = readJson("needed-columns");
const datasetColumns = readJson("dataset-columns");

function missingColumns(recipe) {
  const columns = datasetColumns[form.elements.dataset.value];
  const needed = (columns && neededColumns[recipe]) ?? [];
  return needed.filter(
    (name) => !columns.includes(name) && !columns.includes(name.split(".")[0]),
  );
}

function showFitting() {
  const select = form.elements.recipe;
  const options = [...select.options];
  if (!chosen.has("recipe") && missingColumns(select.value).length) {
    const fitting = options.filter(
      ({ value }) => value && missingColumns(value).length === 0,
    );
    select.value = fitting.length === 1 ? fitting[0].value : "";
  }
  for (const option of options) {
    const missing = missingColumns(option.value);
    option.dataset.title ??= option.textContent.trim();
    option.disabled = missing.length > 0 && !option.selected;
    const noun = missing.length === 1 ? "column" : "columns";
    option.textContent = missing.length
      ? `${option.dataset.title} (needs ${noun} ${missing.join(", ")})`
      : option.dataset.title;
  }
}

const showEnvironment = keepEnvironment(form, {
  chosen,
  rewards: readJson("environment-recipes"),
  usual: () => start.recipe,
});

function show() {
  showEnvironment();
  showMarks();
  showUnused();
  showFitting();
  showThinking();
}

const startBox = document.getElementById("launch-start");
let isLoading = false;

form.addEventListener("change", ({ target }) => {
  if (isLoading) return;
  const name = target.name === "model_other" ? "model" : target.name;
  if (CHOICES.includes(name)) {
    if (target.value || name === "model") chosen.add(name);
    else chosen.delete(name);
    form.elements.chosen.value = [...chosen].join(",");
  }
  if (["model", "dataset", "preset", "scaled"].includes(name))
    startBox.dispatchEvent(new Event("launch-load"));
});

startBox.addEventListener("htmx:afterSwap", ({ target, detail }) => {
  if (target !== startBox) return;
  isLoading = true;
  const isOther = detail.requestConfig.elt === startBox;
  load(readJson("start-values"), isOther);
  if (!isOther) form.elements.preset.focus(); // its button was replaced
  isLoading = false;
});

// A preset that was renamed or deleted (not `isOther`) leaves the fields as they are.
function load(next, isOther) {
  for (const setting of settings) {
    const { setting: path, kind, from } = setting.dataset;
    const text = next.texts[path];
    if (text === undefined) continue;
    if (isOther && isSame(kind, textOf(setting), from)) writeText(setting, text);
    setting.dataset.from = text;
    setting.querySelector("[data-reset-to]").textContent = showText(kind, text);
  }
  loadStepRecipe(next);
  if (isOther) loadChoices(next);
  start = next;
  document.querySelector("[data-heading]").textContent = next.heading;
  form.dispatchEvent(new Event("input", { bubbles: true }));
}

function loadChoices(next) {
  const { phases } = form.elements;
  if (phases.value.trim() === start.phases.trim()) phases.value = next.phases;
  if (!chosen.has("model")) chooseModel(next.model);
  for (const name of ["dataset", "recipe"]) {
    const select = form.elements[name];
    if (chosen.has(name) || select.value === next[name]) continue;
    select.value = next[name];
    select.dispatchEvent(new Event("change", { bubbles: true }));
  }
}

// "start" is the preset's own reward of steps, which the team may not have.
function loadStepRecipe(next) {
  const select = form.elements.step_recipe;
  const own = select.querySelector("option[value=start]");
  const isUntouched = select.value === start.step_recipe;
  own.hidden = own.disabled = !next.has_step_recipe;
  own.textContent = `As in ${next.name}`;
  if (isUntouched || select.selectedOptions[0]?.disabled)
    select.value = next.step_recipe;
}

function chooseModel(path) {
  if (!other) return; // a fork keeps its model
  model.value = path;
  if (model.value !== path) model.value = "";
  form.elements.model_other.value = model.value ? "" : path;
  showOther();
}

function writeText(setting, text) {
  const control = form.elements[setting.dataset.setting];
  if (control.type === "checkbox") control.checked = text !== "";
  else control.value = text;
}

// Errors of the last submission go, or change, as the server checks the form again.
const marked = new Set();
for (const control of form.querySelectorAll("[aria-invalid=true]")) marked.add(control);
const summary = document.getElementById("launch-summary");
summary.addEventListener("htmx:afterSwap", ({ target }) => {
  if (target !== summary) return; // a part of it
  const problems = readJson("launch-problems");
  for (const control of marked) showErrors(control, problems[control.name] ?? []);
  const isFine = Object.keys(problems).length === 0;
  if (isFine) form.querySelector("[data-problems]")?.remove();
});

function showErrors(control, sentences) {
  const [id] = control.getAttribute("aria-describedby").split(" ");
  const about = document.getElementById(id);
  if (sentences.length) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
  for (const error of about.querySelectorAll(".field-error")) error.remove();
  about.prepend(
    ...sentences.map((sentence) => {
      const error = document.createElement("p");
      error.className = "field-error";
      error.textContent = sentence;
      return error;
    }),
  );
}

// The other half of a split is offered for the chosen dataset.
form.addEventListener("htmx:oobAfterSwap", ({ target }) => {
  if (target.id === "eval-suggestion" && target.childElementCount > 0)
    target.closest("details").open = true;
});

// The search shows all parts that have a matching setting, and only those settings.
const search = form.querySelector("[data-settings-search]");
const environment = form.querySelector("[data-part=environment]");
const parts = [...search.closest("section").querySelectorAll("details"), environment];

function findSettings() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  form.classList.toggle("shows-unused", shows.checked || words.length > 0);
  for (const topic of form.querySelectorAll(".launch-topic"))
    topic.hidden = words.length > 0;
  let count = 0;
  for (const part of parts) {
    let hits = 0;
    for (const field of part.querySelectorAll("[data-setting]")) {
      const text = `${field.dataset.setting} ${field.textContent}`.toLowerCase();
      const isHit = words.every((word) => text.includes(word));
      field.hidden = !isHit;
      hits += isHit;
    }
    for (const group of part.querySelectorAll("fieldset"))
      group.hidden = !group.querySelector("[data-setting]:not([hidden])");
    part.hidden = words.length > 0 && hits === 0 && part !== environment;
    if (words.length > 0) part.open = hits > 0;
    count += hits;
  }
  form.querySelector("[data-settings-found]").textContent =
    words.length > 0 ? `${count} settings found` : "";
}

search.addEventListener("input", (event) => {
  event.stopPropagation(); // not a setting
  findSettings();
});
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") event.preventDefault();
});

shows.addEventListener("change", (event) => {
  event.stopPropagation();
  findSettings();
});
shows.addEventListener("input", (event) => event.stopPropagation());

form.addEventListener("input", show);

form.addEventListener("click", (event) => {
  const setting = event.target.closest("[data-reset]")?.closest("[data-setting]");
  if (!setting) return;
  const control = form.elements[setting.dataset.setting];
  writeText(setting, setting.dataset.from);
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

// Enter updates the estimate, Ctrl+Enter launches.
form.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (key !== "Enter" || event.isComposing) return;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    form.querySelector("[data-launch]").click();
  } else if (target.matches("input:not([type=checkbox])"))
    target.dispatchEvent(new Event("change", { bubbles: true }));
});

// What has the focus is scrolled above the bar, whose warnings take room.
new ResizeObserver(([{ target }]) => {
  document.documentElement.style.scrollPaddingBottom = `${target.offsetHeight + 8}px`;
}).observe(form.querySelector(".launch-bar"));

// A link may name a setting.
function showNamed() {
  const field = location.hash && document.getElementById(location.hash.slice(1));
  if (!field || !form.contains(field)) return;
  shows.checked ||= field.closest(".is-unused") !== null;
  findSettings();
  const part = field.closest("details");
  if (part) part.open = true;
  field.focus();
}

showNamed();
window.addEventListener("hashchange", showNamed);

const wrong = form.querySelector(
  "[data-view-fields] [aria-invalid=true], [data-problems]",
);
if (wrong) wrong.focus();
