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
  "seed",
]);

export function keepPreview(form, { rows = null } = {}) {
  const preview = document.getElementById("prompt-preview");
  const fold = preview.closest("details");

  function refresh() {
    const kind = form.elements?.["environment.kind"]?.value ?? "none";
    // Load no tokenizer while the preview is folded, unless episodes are to be checked.
    if (!fold || fold.open || kind !== "none")
      preview.dispatchEvent(new Event("preview"));
  }

  form.addEventListener("input", (event) => {
    const { name } = event.target;
    if (SHOWN.has(name) || String(name).startsWith("environment.")) refresh();
  });
  rows?.addEventListener("input", refresh);
  fold?.addEventListener("toggle", refresh);
  // After htmx has started and the browser has restored the form.
  window.addEventListener("pageshow", refresh);
}
