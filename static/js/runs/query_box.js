// The search as a combobox: keys while a key is typed, then values.

import { choose, offerKeys, offerValues, read } from "./completion.js";
import { knownKeys, valuesOf } from "./suggestions.js";

let place = null;
let active = -1;
let turn = 0; // ignores late responses to earlier input

export function startQueryBox(box) {
  const input = box.querySelector("input");
  const list = box.querySelector("[role=listbox]");
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-controls", list.id);
  input.setAttribute("aria-expanded", "false");
  input.addEventListener("input", () => offer(input, list));
  input.addEventListener("keydown", (event) => onKey(event, input, list));
  input.addEventListener("blur", () => close(input, list));
  // Before the input loses the focus.
  list.addEventListener("pointerdown", (event) => {
    const option = event.target.closest("[role=option]");
    event.preventDefault();
    if (option) take(input, list, option);
  });
}

async function offer(input, list) {
  turn += 1;
  const mine = turn;
  const found = read(input.value, input.selectionStart);
  if (!found || (found.kind === "key" && found.typed === "")) {
    close(input, list);
    return;
  }
  let offered = [];
  try {
    offered =
      found.kind === "key"
        ? offerKeys(await knownKeys(), found.typed)
        : offerValues(await valuesOf(found.key), found.typed);
  } catch (error) {
    console.warn(error); // typing works without suggestions
  }
  if (mine !== turn) return;
  place = found;
  show(input, list, offered);
}

function show(input, list, offered) {
  const isDone = offered.length === 1 && offered[0].text === place.typed;
  if (!offered.length || isDone) {
    close(input, list);
    return;
  }
  list.replaceChildren(...offered.map(option));
  list.hidden = false;
  active = -1;
  input.setAttribute("aria-expanded", "true");
  input.removeAttribute("aria-activedescendant");
}

function option({ text, about }, index) {
  const item = document.createElement("li");
  item.id = `suggestion-${index}`;
  item.setAttribute("role", "option");
  item.setAttribute("aria-selected", "false");
  item.dataset.text = text;
  const name = document.createElement("span");
  name.className = "mono";
  name.textContent = text;
  item.append(name);
  if (about) {
    const note = document.createElement("span");
    note.className = "text-quiet text-end";
    note.textContent = about;
    item.append(" ", note);
  }
  return item;
}

function close(input, list) {
  turn += 1;
  list.hidden = true;
  list.replaceChildren();
  active = -1;
  input.setAttribute("aria-expanded", "false");
  input.removeAttribute("aria-activedescendant");
}

function onKey(event, input, list) {
  if (list.hidden) {
    if (event.key === "ArrowDown") offer(input, list);
    return;
  }
  const options = [...list.children];
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in steps) {
    event.preventDefault();
    const count = options.length + 1; // one more: none of them
    active = ((active + 1 + steps[event.key] + count) % count) - 1;
    mark(input, options);
  } else if (event.key === "Escape") {
    event.preventDefault();
    event.stopPropagation();
    close(input, list);
  } else if ((event.key === "Enter" || event.key === "Tab") && active >= 0) {
    event.preventDefault();
    take(input, list, options[active]);
  }
}

function mark(input, options) {
  options.forEach((one, index) => {
    one.setAttribute("aria-selected", String(index === active));
  });
  if (active >= 0) {
    input.setAttribute("aria-activedescendant", options[active].id);
    options[active].scrollIntoView({ block: "nearest" });
  } else {
    input.removeAttribute("aria-activedescendant");
  }
}

async function take(input, list, chosen) {
  const { flags } = await knownKeys();
  const { text, caret } = choose(input.value, place, chosen.dataset.text, flags);
  input.value = text;
  input.setSelectionRange(caret, caret);
  close(input, list);
  if (place.kind === "key") offer(input, list);
}
