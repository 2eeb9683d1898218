// What is newer on a page of a run is only offered, so that nobody loses what they read.

const notice = document.querySelector("[data-newer]");

// run.js tells of each frame of the stream.
document.addEventListener("runframe", (event) => {
  const step = Math.max(0, ...(event.detail.steps ?? []).map((row) => row.step));
  if (!notice || step <= Number(notice.dataset.newestStep)) return;
  notice.querySelector("[data-newer-step]").textContent = step;
  notice.hidden = false;
});
