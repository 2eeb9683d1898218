// Puts tokens in place of texts, and says what is known of the one that is pointed at.

import { describe, makeScale, makeTokens } from "./tokens.js";

const MAX_TOKENS = 4_096; // of a completion; more would make the page slow

let asked = null;
let completions = new Map(); // by position

async function read(url, signal) {
  const answer = await fetch(url, { signal });
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told.completions;
  throw new Error(told.error ?? `The server answered ${answer.status}.`);
}

function tellLegend(legend, scale) {
  const title = document.createElement("span");
  title.textContent = scale.words;
  const steps = scale.legend.map(({ level, text }) => {
    const step = document.createElement("span");
    step.className = "token";
    if (level) step.dataset.level = level;
    step.textContent = text;
    return step;
  });
  legend.replaceChildren(title, ...steps);
}

function drawTokens(element, completion, scale) {
  const tokens = makeTokens(completion, scale).slice(0, MAX_TOKENS);
  element.replaceChildren(...tokens);
  // Of a very long group the trainer tells of the first of each completion only.
  const count = Math.max(completion.ids.length, Number(element.dataset.numTokens));
  if (count <= tokens.length) return;
  const rest = document.createElement("p");
  rest.className = "completion-note";
  rest.textContent = `The first ${tokens.length} of ${count} tokens are shown.`;
  element.append(rest);
}

function tell(token) {
  const element = token.closest("[data-tokens]");
  const completion = completions.get(Number(element.dataset.tokens));
  for (const other of document.querySelectorAll(".token.is-told")) {
    other.classList.remove("is-told");
  }
  token.classList.add("is-told");
  const readout = document.querySelector("[data-token-readout]");
  readout.textContent = describe(completion, Number(token.dataset.at));
}

function move(event) {
  const delta = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const element = event.target.closest?.("[data-tokens]");
  if (!delta || !element || event.ctrlKey || event.altKey || event.metaKey) return;
  const tokens = [...element.querySelectorAll(".token")];
  const at = tokens.findIndex((token) => token.classList.contains("is-told"));
  const next =
    tokens[at < 0 ? 0 : Math.min(tokens.length - 1, Math.max(0, at + delta))];
  if (!next) return;
  event.preventDefault();
  tell(next);
  next.scrollIntoView({ block: "nearest" });
}

function point(event) {
  const token = event.target.closest?.("[data-tokens] .token");
  if (token) tell(token);
}

document.addEventListener("pointerover", point);
document.addEventListener("click", point);
document.addEventListener("keydown", move);

export async function drawTokenView(page, onDrawn) {
  asked?.abort();
  const list = page.querySelector("[data-tokens-of]");
  if (!list) return;
  asked = new AbortController();
  const trouble = page.querySelector("[data-token-trouble]");
  const { signal } = asked;
  try {
    const found = await read(list.dataset.tokensOf, signal);
    completions = new Map(found.map((completion) => [completion.position, completion]));
    const scale = makeScale(found, list.dataset.color);
    if (!scale) {
      trouble.hidden = false;
      trouble.textContent =
        "This was not measured of the group's tokens: they are shown without colour.";
    }
    const used = scale ?? makeScale(found, "none");
    for (const element of list.querySelectorAll("[data-tokens]")) {
      const completion = completions.get(Number(element.dataset.tokens));
      if (completion) drawTokens(element, completion, used);
    }
    tellLegend(page.querySelector("[data-token-legend]"), used);
    page.querySelector("[data-token-bar]").hidden = false;
    onDrawn();
  } catch (error) {
    if (signal.aborted) return;
    trouble.hidden = false;
    trouble.textContent = error.message;
  }
}
