// Replaces texts by tokens, and shows the values of the selected token.

import { addTeacher, describe, makeScale, makeTokens } from "./tokens.js";

const MAX_TOKENS = 4_096; // of a completion; more would make the page slow

let request = null;
let completions = new Map(); // by position

async function read(url, signal) {
  const answer = await fetch(url, { signal });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body.completions;
  throw new Error(body.error ?? `The server returned status ${answer.status}.`);
}

function drawLegend(legend, scale) {
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

// The author in front of the first token of each turn.
function withAuthors(tokens, turns) {
  const drawn = [...tokens];
  for (const [at, [author]] of [...turns.entries()].reverse()) {
    const start = at ? turns[at - 1][2] : 0;
    if (start >= tokens.length) continue;
    const name = document.createElement("span");
    name.className = "token-author";
    name.textContent = author;
    drawn.splice(start, 0, name);
  }
  return drawn;
}

function drawTokens(element, completion, scale) {
  const tokens = makeTokens(completion, scale).slice(0, MAX_TOKENS);
  element.replaceChildren(...withAuthors(tokens, completion.turns));
  // For a very long group the trainer logs only the first tokens of each completion.
  const sampled = completion.turns.at(-1)?.[2] ?? Number(element.dataset.numTokens);
  const count = Math.max(completion.ids.length, sampled);
  if (count <= tokens.length) return;
  const rest = document.createElement("p");
  rest.className = "completion-note m-0 text-quiet text-small";
  rest.textContent = `Showing the first ${tokens.length} of ${count} tokens.`;
  element.append(rest);
}

function select(token) {
  const element = token.closest("[data-tokens]");
  const completion = completions.get(Number(element.dataset.tokens));
  for (const other of document.querySelectorAll(".token.is-selected")) {
    other.classList.remove("is-selected");
  }
  token.classList.add("is-selected");
  const readout = document.querySelector("[data-token-readout]");
  readout.textContent = describe(completion, Number(token.dataset.at));
}

function move(event) {
  const delta = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const element = event.target.closest?.("[data-tokens]");
  if (!delta || !element || event.ctrlKey || event.altKey || event.metaKey) return;
  const tokens = [...element.querySelectorAll(".token")];
  const at = tokens.findIndex((token) => token.classList.contains("is-selected"));
  const next =
    tokens[at < 0 ? 0 : Math.min(tokens.length - 1, Math.max(0, at + delta))];
  if (!next) return;
  event.preventDefault();
  select(next);
  next.scrollIntoView({ block: "nearest" });
}

function point(event) {
  const token = event.target.closest?.("[data-tokens] .token");
  if (token) select(token);
}

document.addEventListener("pointerover", point);
document.addEventListener("click", point);
document.addEventListener("keydown", move);

export async function drawTokenView(page, onDrawn) {
  request?.abort();
  const list = page.querySelector("[data-tokens-of]");
  if (!list) return;
  request = new AbortController();
  const notice = page.querySelector("[data-token-trouble]");
  const { signal } = request;
  try {
    const found = await read(list.dataset.tokensOf, signal);
    completions = new Map(found.map((completion) => [completion.position, completion]));
    found.forEach(addTeacher);
    const scale = makeScale(found, list.dataset.color);
    if (!scale) {
      notice.hidden = false;
      notice.textContent =
        "This group has no values of this kind. Tokens are shown without colour.";
    }
    const used = scale ?? makeScale(found, "none");
    for (const element of list.querySelectorAll("[data-tokens]")) {
      const completion = completions.get(Number(element.dataset.tokens));
      if (!completion) continue;
      // Author, whether it is the policy, and where its tokens end.
      completion.turns = JSON.parse(element.dataset.turns || "[]");
      drawTokens(element, completion, used);
    }
    drawLegend(page.querySelector("[data-token-legend]"), used);
    page.querySelector("[data-token-bar]").hidden = false;
    onDrawn();
  } catch (error) {
    if (signal.aborted) return;
    notice.hidden = false;
    notice.textContent = error.message;
  }
}
