// A swipe to the left or right over a completion, on a touch screen.

const LEAST_PX = 60;
const STEEPEST = 0.5; // of the way across; steeper ones scroll

let began = null;

// A wide table or code block scrolls by the same move.
function scrollsSideways(element, row) {
  for (let at = element; at && at !== row; at = at.parentElement) {
    const { overflowX } = getComputedStyle(at);
    if (at.scrollWidth > at.clientWidth && /auto|scroll/.test(overflowX)) return true;
  }
  return false;
}

/** `move(row, delta)`: to the next (1) or the previous (-1) of the rows. */
export function bindSwipes(selector, move) {
  document.addEventListener(
    "touchstart",
    ({ target, touches }) => {
      const row = touches.length === 1 && target.closest(selector);
      const isFree = row && !target.closest("input, textarea, select");
      const [{ clientX: x, clientY: y }] = touches;
      began = isFree && !scrollsSideways(target, row) ? { row, x, y } : null;
    },
    { passive: true },
  );
  document.addEventListener("touchend", ({ changedTouches }) => {
    if (!began || !getSelection().isCollapsed) return;
    const { row, x, y } = began;
    began = null;
    const across = changedTouches[0].clientX - x;
    const along = Math.abs(changedTouches[0].clientY - y);
    if (Math.abs(across) < LEAST_PX || along > STEEPEST * Math.abs(across)) return;
    move(row, across < 0 ? 1 : -1);
  });
  document.addEventListener("touchcancel", () => {
    began = null;
  });
}
