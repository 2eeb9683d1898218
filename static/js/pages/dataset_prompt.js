// A dataset's prompts as a model sees them.

import { keepPreview } from "../datasets/prompt_preview.js";

keepPreview(document.getElementById("prompt-form"));
