// The search of completions: its address has all that it shows, and `c` copies it.
import "../copy.js";
import { bindKeys, isPlain, isTyping, moveIndex } from "../keys.js";

bindKeys();

document.addEventListener("change", ({ target }) => {
  if (target.matches("[data-submits]")) target.form.requestSubmit();
});

document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-toggle-rail]");
  if (!button) return;
  const isOpen = document.getElementById("rail").classList.toggle("is-open");
  button.setAttribute("aria-expanded", String(isOpen));
});

const DELTAS = { j: 1, k: -1 };

document.addEventListener("keydown", (event) => {
  const delta = DELTAS[event.key];
  if (!delta || !isPlain(event) || isTyping(event.target)) return;
  const links = [...document.querySelectorAll(".found-prompt")];
  const at = links.indexOf(document.activeElement);
  links[moveIndex(at, delta, links.length)]?.focus();
});
