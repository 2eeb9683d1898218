// Copies a version's whole hash, of which the table shows the beginning.

async function copy(button) {
  const text = button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without TLS a browser keeps its clipboard closed: the hash is then shown whole.
    button.previousElementSibling.textContent = text;
    button.remove();
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
