// The step slider: shows its step while it moves, goes there when let go.
import { bindKeys } from "../keys.js";

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

// run.js tells of each frame of the stream; the page only offers the newer step, so
// that nobody loses the groups they are reading.
const newer = document.querySelector("[data-newer]");

document.addEventListener("runframe", (event) => {
  const step = Math.max(0, ...(event.detail.steps ?? []).map((row) => row.step));
  if (!newer || step <= Number(newer.dataset.newestStep)) return;
  newer.querySelector("[data-newer-step]").textContent = step;
  newer.hidden = false;
});
