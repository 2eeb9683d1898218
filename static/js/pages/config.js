// Copies the settings as TOML, which is read from the server when asked for.

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy-toml]");
  if (!button) return;
  const answer = await fetch(button.dataset.copyToml).catch(() => null);
  try {
    await navigator.clipboard.writeText(await answer.text());
    button.textContent = "Copied";
  } catch {
    // Pages served without HTTPS have no clipboard.
    button.textContent = "Copying is not allowed";
  }
  setTimeout(() => {
    button.textContent = "Copy TOML";
  }, 2_000);
});
