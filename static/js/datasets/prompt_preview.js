// Asks for the preview of a prompt anew when something that it shows has changed.
// htmx waits until typing pauses, and drops the answer to what was asked before.

const SHOWN = new Set([
  "dataset",
  "model",
  "model_other",
  "data.system_prompt",
  "data.prompt_template",
  "data.completion_prefix",
  "data.chat_template",
  "data.max_prompt_tokens",
]);

export function keepPreview(form, { rows = null } = {}) {
  const preview = document.getElementById("prompt-preview");
  const fold = preview.closest("details");

  function ask() {
    // A tokenizer is loaded for those only who want to look.
    if (!fold || fold.open) preview.dispatchEvent(new Event("preview"));
  }

  form.addEventListener("input", (event) => {
    if (SHOWN.has(event.target.name)) ask();
  });
  rows?.addEventListener("input", ask);
  fold?.addEventListener("toggle", ask);
  // Once htmx listens, and a browser that comes back has filled in what was typed.
  window.addEventListener("pageshow", ask);
}
