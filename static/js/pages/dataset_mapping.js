// Prompt preview before an import; extra columns that are left to choose.

import { keepPreview } from "../datasets/prompt_preview.js";

const form = document.getElementById("mapping");

// Each column selected changes the row.
keepPreview(document.getElementById("prompt-form"), { rows: form });

// The prompt and the answer are no extra columns.
function hideUsed() {
  const { prompt, answer } = form.elements;
  for (const box of form.querySelectorAll("[data-column]")) {
    box.hidden = [prompt.value, answer.value].includes(box.dataset.column);
  }
}

form.addEventListener("change", hideUsed);
window.addEventListener("pageshow", hideUsed);
