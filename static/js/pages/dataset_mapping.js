// Prompt preview before an import; extra columns that are left to choose.

import { keepPreview } from "../datasets/prompt_preview.js";

const form = document.getElementById("mapping");

// Each column selected changes the row.
keepPreview(document.getElementById("prompt-form"), { rows: form });

// Prompt, answer and system message are no extra columns.
function hideUsed() {
  const { prompt, answer, system } = form.elements;
  const used = [prompt.value, answer.value, system.value];
  for (const box of form.querySelectorAll("[data-column]")) {
    box.hidden = used.includes(box.dataset.column);
  }
}

form.addEventListener("change", hideUsed);
window.addEventListener("pageshow", hideUsed);
