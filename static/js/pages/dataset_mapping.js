// A file's rows as a model sees them, before they are imported.

import { keepPreview } from "../datasets/prompt_preview.js";

// Every choice of a column changes the row.
keepPreview(document.getElementById("prompt-form"), {
  rows: document.getElementById("mapping"),
});
