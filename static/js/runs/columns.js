// The dialog that selects and orders columns.

import { knownKeys } from "./suggestions.js";

const MAX_OFFERED = 60;

export function startColumns(opener, filters) {
  const dialog = document.getElementById("columns");
  const { now, defaults, own } = JSON.parse(
    document.getElementById("columns-now").textContent,
  );
  const state = { chosen: now, all: own, dialog };
  opener.hidden = false;
  opener.addEventListener("click", () => {
    state.chosen = now;
    dialog.showModal();
    draw(state);
    load(state, own);
  });
  const search = dialog.querySelector("#columns-search");
  search.addEventListener("input", () => drawOffered(state));
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    dialog.querySelector("[data-columns-offered] button")?.click();
  });
  dialog.addEventListener("click", (event) => onClick(event, state, defaults));
  dialog.querySelector("[data-columns-apply]").addEventListener("click", () => {
    const keys = state.chosen.map(({ key }) => key);
    const isDefault = keys.join("\n") === defaults.map(({ key }) => key).join("\n");
    filters.querySelector("[data-cols]").value = isDefault ? "" : write(keys);
    dialog.close();
    filters.requestSubmit();
  });
}

/** Keys separated by commas; a key with a comma is quoted, as in CSV. */
function write(keys) {
  return keys
    .map((key) => (/[",]/.test(key) ? `"${key.replaceAll('"', '""')}"` : key))
    .join(",");
}

async function load(state, own) {
  const count = state.dialog.querySelector("[data-columns-count]");
  try {
    const known = await knownKeys();
    state.all = [
      ...own,
      ...known.metrics.flatMap(({ metric, title, stats }) =>
        stats.map((stat) => ({ key: `${metric}.${stat}`, title, note: stat })),
      ),
      ...known.settings.map(({ key }) => ({
        key,
        title: key.replace(/^config\./, ""),
        note: "setting",
      })),
    ];
    state.about = `from the newest ${known.num_runs} runs`;
    drawOffered(state);
  } catch (error) {
    count.textContent = `Failed to load settings and metrics: ${error.message}`;
  }
}

function onClick(event, state, defaults) {
  const button = event.target.closest("button");
  if (!button) return;
  if ("columnsDefaults" in button.dataset) state.chosen = defaults;
  else if (button.dataset.add) add(state, button.dataset.add);
  else if (button.dataset.remove) {
    state.chosen = state.chosen.filter(({ key }) => key !== button.dataset.remove);
  } else if (button.dataset.move) move(state, button);
  else return;
  draw(state, button.dataset);
}

function add(state, key) {
  const found = state.all.find((one) => one.key === key);
  state.chosen = [...state.chosen, found];
}

function move(state, button) {
  const at = state.chosen.findIndex(({ key }) => key === button.dataset.move);
  const to = at + Number(button.dataset.by);
  if (to < 0 || to >= state.chosen.length) return;
  const chosen = [...state.chosen];
  [chosen[at], chosen[to]] = [chosen[to], chosen[at]];
  state.chosen = chosen;
}

function draw(state, was = {}) {
  const chosen = state.dialog.querySelector("[data-columns-chosen]");
  chosen.replaceChildren(
    ...state.chosen.map((one, index) => chosenItem(one, index, state)),
  );
  drawOffered(state);
  // The pressed button was replaced: focus the new one.
  if (was.move) {
    const again = `[data-move="${CSS.escape(was.move)}"][data-by="${was.by}"]`;
    chosen.querySelector(again)?.focus();
  } else if (was.add || was.remove) {
    state.dialog.querySelector("#columns-search").focus();
  }
}

function drawOffered(state) {
  const { dialog } = state;
  const typed = dialog.querySelector("#columns-search").value.trim().toLowerCase();
  const taken = new Set(state.chosen.map(({ key }) => key));
  const found = state.all.filter(
    ({ key, title }) =>
      !taken.has(key) && `${key} ${title}`.toLowerCase().includes(typed),
  );
  const offered = dialog.querySelector("[data-columns-offered]");
  offered.replaceChildren(...found.slice(0, MAX_OFFERED).map(offeredItem));
  const shown = Math.min(found.length, MAX_OFFERED);
  dialog.querySelector("[data-columns-count]").textContent =
    `${shown} of ${found.length}${state.about ? `, ${state.about}` : ""}`;
}

function offeredItem(one) {
  const item = document.createElement("li");
  item.append(button(`Add ${name(one)}`, { add: one.key }, ...label(one)));
  return item;
}

function chosenItem(one, index, { chosen }) {
  const item = document.createElement("li");
  const title = document.createElement("span");
  title.className = "column-title py-1 px-2 text-break";
  title.append(...label(one));
  const up = button(`Move ${name(one)} up`, { move: one.key, by: -1 }, "↑");
  const down = button(`Move ${name(one)} down`, { move: one.key, by: 1 }, "↓");
  up.disabled = index === 0;
  down.disabled = index === chosen.length - 1;
  item.append(title, up, down, button(`Remove ${name(one)}`, { remove: one.key }, "✕"));
  return item;
}

const name = ({ title, note }) => (note ? `${title} ${note}` : title);

function label({ title, note }) {
  if (!note) return [title];
  const quiet = document.createElement("span");
  quiet.className = "text-quiet fw-normal";
  quiet.textContent = note;
  return [title, " ", quiet];
}

function button(spoken, data, ...content) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "column-button";
  made.setAttribute("aria-label", spoken);
  Object.assign(made.dataset, data);
  made.append(...content);
  return made;
}
