// The reward log: run.js tells of each frame of the stream; the page only offers what is
// newer, so that nobody loses the texts they are reading.

const newer = document.querySelector("[data-newer]");

document.addEventListener("runframe", (event) => {
  const step = Math.max(0, ...(event.detail.steps ?? []).map((row) => row.step));
  if (step <= Number(newer.dataset.newestStep)) return;
  newer.querySelector("[data-newer-step]").textContent = step;
  newer.hidden = false;
});
