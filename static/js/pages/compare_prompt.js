// A prompt in two runs: differences are drawn when pairs become visible.
import { drawDifferences } from "../group/differences.js";

const form = document.querySelector("[data-pair-form]");
form.addEventListener("change", () => form.requestSubmit());
form.querySelector("[data-without-script]").hidden = true;
drawDifferences(document);
