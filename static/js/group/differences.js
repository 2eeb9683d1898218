// Draws the differences of completions as they come into view.

import { compare, describe, draw, isAlike } from "./diff.js";

function drawOne(element) {
  const base = document.getElementById(element.dataset.diffWith);
  if (!base) return; // of a text that is shown in part
  const found = compare(base.textContent, element.textContent, window.Diff);
  if (found && isAlike(found)) draw(element, found.pieces);
  const part = element.closest("[data-turn], [data-completion]");
  const note = part.querySelector("[data-diff-note]");
  note.textContent = describe(found, element.dataset.diffName);
}

let watcher = null;

export function drawDifferences(page) {
  watcher?.disconnect();
  watcher = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        watcher.unobserve(target);
        drawOne(target);
      }
    },
    { rootMargin: "300px" },
  );
  for (const element of page.querySelectorAll("[data-diff-with]")) {
    watcher.observe(element);
  }
}
