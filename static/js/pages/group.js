// One group: j and k walk its completions, a button copies a link, long texts open.
import { bindKeys, isPlain, isTyping, moveIndex } from "../keys.js";

bindKeys();

const cards = [...document.querySelectorAll("[data-completion]")];

function focused() {
  return cards.findIndex((card) => card.contains(document.activeElement));
}

document.addEventListener("keydown", (event) => {
  const delta = { j: 1, k: -1 }[event.key];
  if (!delta || !isPlain(event) || isTyping(event.target)) return;
  const card = cards[moveIndex(focused(), delta, cards.length)];
  card?.focus({ preventScroll: true });
  card?.scrollIntoView({ block: "nearest", behavior: "smooth" });
});

async function copyLink(button) {
  const url = new URL(button.dataset.copyLink || location.href, location.href);
  const status = document.querySelector("[data-copy-status]");
  try {
    await navigator.clipboard.writeText(url.href);
    status.textContent = "Link copied.";
  } catch {
    // Pages served without HTTPS have no clipboard; the address can still be taken.
    status.textContent = `Copy this link: ${url.href}`;
  }
}

function toggleText(button) {
  const text = document.getElementById(button.getAttribute("aria-controls"));
  const open = text.classList.toggle("is-open");
  button.setAttribute("aria-expanded", String(open));
  button.textContent = open ? "Show less" : "Show all";
}

document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy-link]");
  if (copy) copyLink(copy);
  const toggle = event.target.closest("[data-toggle-text]");
  if (toggle) toggleText(toggle);
});

// A button appears only where the text does not fit.
for (const button of document.querySelectorAll("[data-toggle-text]")) {
  const text = document.getElementById(button.getAttribute("aria-controls"));
  button.hidden = text.scrollHeight <= text.clientHeight + 1;
}

for (const select of document.querySelectorAll("[data-submit-on-change]")) {
  select.addEventListener("change", () => select.form.requestSubmit());
}
