// Single-key shortcuts: an element with data-key="[" is clicked by that key.

export function isTyping(target) {
  return Boolean(
    target?.closest?.(
      "input:not([type=range], [type=checkbox], [type=radio]), textarea, select, [contenteditable], dialog[open]",
    ),
  );
}

export function isPlain(event) {
  return !(event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented);
}

export function bindKeys(page = document) {
  page.addEventListener("keydown", (event) => {
    if (!isPlain(event) || isTyping(event.target)) return;
    for (const element of page.querySelectorAll("[data-key]")) {
      if (element.dataset.key !== event.key) continue;
      event.preventDefault();
      element.click();
      return;
    }
  });
}

// The next index of `count`; from none (-1), the first or the last.
export function moveIndex(index, delta, count) {
  if (count === 0) return -1;
  if (index < 0) return delta > 0 ? 0 : count - 1;
  return Math.min(count - 1, Math.max(0, index + delta));
}
