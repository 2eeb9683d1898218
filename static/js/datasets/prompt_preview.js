// Requests the prompt preview again when one of its inputs changes. htmx waits for a
// pause in typing and drops responses to earlier requests.

const SHOWN = new Set([
  "dataset",
  "model",
  "model_other",
  "data.system_prompt",
  "data.prompt_template",
  "data.completion_prefix",
  "data.chat_template",
  "data.chat_template_kwargs",
  "data.max_prompt_tokens",
]);

export function keepPreview(form, { rows = null } = {}) {
  const preview = document.getElementById("prompt-preview");
  const fold = preview.closest("details");

  function refresh() {
    // Load no tokenizer while the preview is folded.
    if (!fold || fold.open) preview.dispatchEvent(new Event("preview"));
  }

  form.addEventListener("input", (event) => {
    if (SHOWN.has(event.target.name)) refresh();
  });
  rows?.addEventListener("input", refresh);
  fold?.addEventListener("toggle", refresh);
  // After htmx has started and the browser has restored the form.
  window.addEventListener("pageshow", refresh);
}
