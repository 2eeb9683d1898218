// The step slider: shows its step while dragged, navigates on release.
import { bindKeys } from "../keys.js";
import "../live/newer.js";

bindKeys();

const form = document.querySelector("[data-step-form]");
const slider = form?.querySelector("[data-step-slider]");
const number = form?.querySelector("[name=step]");

if (slider) {
  slider.disabled = false;
  slider.addEventListener("input", () => {
    number.value = slider.value;
  });
  slider.addEventListener("change", () => form.requestSubmit());
}
