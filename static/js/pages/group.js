// One group: keyboard navigation, links and long texts.
import "../copy_link.js";
import { drawDifferences } from "../group/differences.js";
import { drawTokenView } from "../group/token_view.js";
import { bindKeys, isPlain, isTyping, moveIndex } from "../keys.js";

bindKeys();

function move(delta) {
  const cards = [...document.querySelectorAll("[data-completion]")];
  const at = cards.findIndex((card) => card.contains(document.activeElement));
  const card = cards[moveIndex(at, delta, cards.length)];
  card?.focus({ preventScroll: true });
  card?.scrollIntoView({ block: "nearest", behavior: "smooth" });
}

function cycleSelect(key) {
  const selects = [...document.querySelectorAll("[data-cycle-key]")];
  const select = selects.find(({ dataset }) => dataset.cycleKey === key);
  if (!select) return;
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event("change", { bubbles: true }));
}

document.addEventListener("keydown", (event) => {
  if (!isPlain(event) || isTyping(event.target)) return;
  const delta = { j: 1, k: -1 }[event.key];
  if (delta) move(delta);
  else cycleSelect(event.key);
});

function toggleText(button) {
  const text = document.getElementById(button.getAttribute("aria-controls"));
  const open = text.classList.toggle("is-open");
  button.setAttribute("aria-expanded", String(open));
  button.textContent = open ? "Show less" : "Show all";
}

document.addEventListener("click", (event) => {
  const toggle = event.target.closest("[data-toggle-text]");
  if (toggle) toggleText(toggle);
});

// Shows the button only if the text is too long.
function showToggles() {
  for (const button of document.querySelectorAll("[data-toggle-text]")) {
    const text = document.getElementById(button.getAttribute("aria-controls"));
    button.hidden = text.scrollHeight <= text.clientHeight + 1;
  }
}

function drawPage() {
  const page = document.getElementById("group-page");
  showToggles();
  drawDifferences(page);
  drawTokenView(page, showToggles);
}

drawPage();
// Swapped annotations leave the drawn texts unchanged.
document.addEventListener("htmx:afterSettle", ({ target }) => {
  if (target.id === "group-page") drawPage();
});
