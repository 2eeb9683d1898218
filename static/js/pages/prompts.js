// The prompts of a run: a drag over the histogram filters by a range of pass rates.

const histogram = document.querySelector("[data-histogram]");
const bars = [...(histogram?.querySelectorAll("[data-low]") ?? [])];
let first = -1;

const indexAt = ({ target }) => bars.indexOf(target.closest?.("[data-low]"));

function mark(last) {
  const [low, high] = [Math.min(first, last), Math.max(first, last)];
  bars.forEach((bar, at) => {
    bar.classList.toggle("is-chosen", first >= 0 && at >= low && at <= high);
  });
}

histogram?.addEventListener("pointerdown", (event) => {
  first = indexAt(event);
  mark(first);
});
histogram?.addEventListener("pointerover", (event) => {
  if (first >= 0 && indexAt(event) >= 0) mark(indexAt(event));
});
// A click on one bar follows its link.
histogram?.addEventListener("dragstart", (event) => event.preventDefault());
document.addEventListener("pointerup", (event) => {
  const [from, to] = [first, indexAt(event)];
  first = -1;
  mark(-1);
  if (from < 0 || to < 0 || from === to) return;
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  const url = new URL(histogram.dataset.histogram, location.href);
  url.searchParams.set("low", bars[low].dataset.low);
  url.searchParams.set("high", bars[high].dataset.high);
  location.assign(url);
});

// A form that was refused.
document.querySelector("dialog[data-opened]")?.showModal();
