// Prompt preview before an import.

import { keepPreview } from "../datasets/prompt_preview.js";

// Each column selected changes the row.
keepPreview(document.getElementById("prompt-form"), {
  rows: document.getElementById("mapping"),
});
