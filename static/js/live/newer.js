// A notice offers newer data of a run; replacing the page would interrupt reading.

const notice = document.querySelector("[data-newer]");

// run.js dispatches each frame of the stream.
document.addEventListener("runframe", (event) => {
  const step = Math.max(0, ...(event.detail.steps ?? []).map((row) => row.step));
  if (!notice || step <= Number(notice.dataset.newestStep)) return;
  notice.querySelector("[data-newer-step]").textContent = step;
  notice.hidden = false;
});
