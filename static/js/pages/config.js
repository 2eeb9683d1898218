// Copies the settings as TOML, which is read from the server when asked for.

import { copyText, sayOn } from "../copy.js";

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy-toml]");
  if (button) sayOn(button, await copyFrom(button.dataset.copyToml));
});

async function copyFrom(address) {
  const answer = await fetch(address).catch(() => null);
  if (!answer?.ok || answer.redirected) return "Not copied: the server did not answer";
  const isCopied = await copyText(await answer.text());
  return isCopied ? "Copied" : "Copying is not allowed";
}
