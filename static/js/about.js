// ⓘ beside a metric, setting or term: its entry of the help, in one popover of the page.
// The link itself leads to the entry as a page.

const GAP_PX = 6;
const known = new Map(); // entries by address
const popover = document.createElement("div");
popover.id = "about";
popover.className = "card about-popover";
popover.popover = "auto";
popover.tabIndex = -1;
popover.setAttribute("role", "dialog");

async function read(address) {
  if (known.has(address)) return known.get(address);
  const answer = await fetch(`${address}?part`).catch(() => null);
  if (!answer?.ok || answer.redirected) return null;
  const text = await answer.text();
  known.set(address, text);
  return text;
}

// Below the link, or above it where there is more room; inside the window.
function place(link) {
  const at = link.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = popover;
  const isBelow = at.bottom + GAP_PX + height <= innerHeight || at.top < height;
  const left = Math.min(Math.max(GAP_PX, at.left), innerWidth - width - GAP_PX);
  const top = isBelow ? at.bottom + GAP_PX : at.top - height - GAP_PX;
  popover.style.left = `${left}px`;
  popover.style.top = `${top}px`;
}

export async function show(link) {
  const text = await read(link.href);
  if (text === null) {
    location.assign(link.href);
    return;
  }
  // Within an open dialog, which makes all else inert.
  (link.closest("dialog") ?? document.body).append(popover);
  popover.innerHTML = text;
  popover.setAttribute("aria-label", link.getAttribute("aria-label"));
  link.focus({ preventScroll: true }); // where the focus returns
  popover.showPopover();
  place(link);
  popover.focus({ preventScroll: true });
}

addEventListener(
  "scroll",
  () => popover.matches(":popover-open") && popover.hidePopover(),
);
