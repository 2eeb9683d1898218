// Keeps the end of a growing log in view, unless its reader has scrolled away.

const box = () => document.querySelector(".log");
let left = null; // where the reader was, when it was not the end

function isAtEnd(log) {
  return log.scrollHeight - log.scrollTop - log.clientHeight < 8;
}

function place() {
  const log = box();
  if (log) log.scrollTop = left ?? log.scrollHeight;
}

document.addEventListener("htmx:beforeSwap", () => {
  const log = box();
  left = log && !isAtEnd(log) ? log.scrollTop : null;
});
document.addEventListener("htmx:afterSettle", place);
place();
