// Copying to the clipboard. A button with data-copy copies that text, one with
// data-copy-link that URL, or the page's.

const SHOWN_MS = 2_000;

/** False where the browser allows no copying, as on pages served without HTTPS. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** What a button says for a moment. */
export function sayOn(button, words) {
  button.dataset.label ??= button.textContent;
  button.textContent = words;
  setTimeout(() => {
    button.textContent = button.dataset.label;
  }, SHOWN_MS);
}

async function copyLink(button) {
  const url = new URL(button.dataset.copyLink || location.href, location.href);
  const isCopied = await copyText(url.href);
  const status = document.querySelector("[data-copy-status]");
  status.textContent = isCopied ? "Link copied." : `Copy this link: ${url.href}`;
}

// Where the browser refuses, the text is selected beside the button.
async function copyValue(button) {
  const place = button.previousElementSibling;
  if (await copyText(button.dataset.copy)) return sayOn(button, "Copied");
  if (place instanceof HTMLInputElement) place.select();
  else {
    place.textContent = button.dataset.copy;
    getSelection().selectAllChildren(place);
  }
  sayOn(button, "Press Ctrl+C");
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-copy-link], [data-copy]");
  if (!button) return;
  if ("copy" in button.dataset) copyValue(button);
  else copyLink(button);
});
