// A button with data-copy-link copies that URL, or the page's.

async function copyLink(button) {
  const url = new URL(button.dataset.copyLink || location.href, location.href);
  const status = document.querySelector("[data-copy-status]");
  try {
    await navigator.clipboard.writeText(url.href);
    status.textContent = "Link copied.";
  } catch {
    // Pages served without HTTPS have no clipboard; show the URL instead.
    status.textContent = `Copy this link: ${url.href}`;
  }
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-copy-link]");
  if (button) copyLink(button);
});
