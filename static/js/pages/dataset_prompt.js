// Prompt preview of a dataset.

import { keepPreview } from "../datasets/prompt_preview.js";

keepPreview(document.getElementById("prompt-form"));
