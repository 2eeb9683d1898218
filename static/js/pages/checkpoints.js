// The Checkpoints tab: live list and dialogs.

const REFRESH_MS = 500; // between refreshes: scores follow a saved checkpoint

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open-dialog][data-action]");
  if (!opener) return;
  const dialog = document.getElementById(opener.dataset.openDialog);
  const { action, step } = opener.dataset;
  dialog.querySelector("[data-dialog-form]").action = action;
  dialog.querySelector("[data-dialog-step]").textContent = step;
  const name = dialog.querySelector("[data-dialog-name]");
  if (name) name.value = `${name.dataset.dialogName}, step ${step}`;
});

let timer = null;
let known = "";

function needsRefresh(frame) {
  if (frame.type === "snapshot") return true;
  const types = (frame.events ?? []).map((event) => event.type);
  if (types.includes("checkpoint_saved") || frame.evaluations?.length) return true;
  // A checkpoint was pinned or deleted, or the run changed state.
  return frame.steps?.length === 0 && types.length === 0;
}

document.addEventListener("runframe", ({ detail: frame }) => {
  const bar = document.querySelector("[data-since]");
  if (bar && frame.run) bar.value = frame.run.last_step - Number(bar.dataset.since);
  const state = frame.run?.state ?? known;
  const hasChanged = known !== "" && state !== known;
  known = state;
  if (hasChanged || needsRefresh(frame)) refreshIn(REFRESH_MS);
});

function refreshIn(milliseconds) {
  if (timer === null) timer = setTimeout(refresh, milliseconds);
}

async function refresh() {
  timer = null;
  const list = document.getElementById("checkpoints");
  const isUsed =
    list.contains(document.activeElement) &&
    document.activeElement.tagName === "SELECT";
  if (
    isUsed ||
    document.querySelector("dialog[open], #checkpoints [data-menu][open]")
  ) {
    refreshIn(2_000);
    return;
  }
  const response = await fetch(location.href).catch(() => null);
  if (!response?.ok) return; // the next frame retries
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = page.getElementById("checkpoints");
  if (!fresh || fresh.innerHTML === list.innerHTML) return;
  const label = document.activeElement?.getAttribute("aria-label");
  const held = list.contains(document.activeElement) && label;
  const isUnfolded = list.querySelector(".checkpoints-gone")?.open;
  list.replaceChildren(...fresh.childNodes);
  const gone = list.querySelector(".checkpoints-gone");
  if (isUnfolded && gone) gone.open = true;
  if (held) list.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus();
}
