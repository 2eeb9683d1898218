// Copies the settings as TOML, which is read from the server when asked for.

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy-toml]");
  if (!button) return;
  button.textContent = await copyFrom(button.dataset.copyToml);
  setTimeout(() => {
    button.textContent = "Copy TOML";
  }, 2_000);
});

async function copyFrom(address) {
  const answer = await fetch(address).catch(() => null);
  if (!answer?.ok || answer.redirected) return "Not copied: the server did not answer";
  try {
    await navigator.clipboard.writeText(await answer.text());
    return "Copied";
  } catch {
    // Pages served without HTTPS have no clipboard.
    return "Copying is not allowed";
  }
}
