// Copies the full hash of a version; the table shows its first characters.

async function copy(button) {
  const text = button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without TLS, browsers block the clipboard: show the full hash instead.
    button.previousElementSibling.textContent = text;
    button.remove();
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
