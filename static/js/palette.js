// The command palette: a combobox over what the server finds. Focus stays in the input;
// aria-activedescendant names the chosen result.

const DELAY_MS = 80;
const dialog = document.getElementById("palette");
const input = dialog.querySelector("[data-palette-input]");
const list = dialog.querySelector("[data-palette-list]");
const status = dialog.querySelector("[data-palette-status]");
const button = document.querySelector("[data-palette]");
let pending = new AbortController();
let timer = 0;
let chosen = null;

const results = () => [...list.querySelectorAll("[role=option]")];

function choose(option) {
  chosen?.setAttribute("aria-selected", "false");
  chosen = option ?? null;
  chosen?.setAttribute("aria-selected", "true");
  chosen?.scrollIntoView({ block: "nearest" });
  if (chosen) input.setAttribute("aria-activedescendant", chosen.id);
  else input.removeAttribute("aria-activedescendant");
}

function move(delta) {
  const options = results();
  if (!options.length) return;
  const at = Math.max(options.indexOf(chosen), delta < 0 ? 0 : -1);
  choose(options[(at + delta + options.length) % options.length]);
}

async function search() {
  pending.abort();
  pending = new AbortController();
  const query = new URLSearchParams({ palette: "", q: input.value });
  if (button.dataset.runId) query.set("run", button.dataset.runId);
  const address = `${button.dataset.palette}?${query}`;
  const answer = await fetch(address, { signal: pending.signal }).catch(() => null);
  if (!answer) return; // another search has begun, or the server is away
  if (!answer.ok || answer.redirected) {
    location.assign(button.href);
    return;
  }
  list.innerHTML = await answer.text();
  const count = results().length;
  list.hidden = count === 0;
  input.setAttribute("aria-expanded", String(count > 0));
  status.textContent = count
    ? `${count} result${count === 1 ? "" : "s"}`
    : "Nothing found. Try fewer words.";
  choose(results()[0]);
}

input.addEventListener("input", () => {
  choose(null); // of the words before
  clearTimeout(timer);
  timer = setTimeout(search, DELAY_MS);
});

async function openChosen(keys) {
  if (!chosen) {
    clearTimeout(timer);
    await search();
  }
  const click = { bubbles: true, cancelable: true, ...keys };
  chosen?.dispatchEvent(new MouseEvent("click", click));
}

input.addEventListener("keydown", (event) => {
  if (event.isComposing) return; // Enter and arrows choose a character
  if (event.key === "ArrowDown") move(1);
  else if (event.key === "ArrowUp") move(-1);
  else if (event.key === "Enter") {
    const { ctrlKey, metaKey } = event;
    openChosen({ ctrlKey, metaKey });
  } else return;
  event.preventDefault();
});

list.addEventListener("mousemove", ({ target }) => {
  const option = target.closest("[role=option]");
  if (option && option !== chosen) choose(option);
});

// A result on this page only moves to its place.
list.addEventListener("click", (event) => {
  if (event.target.closest("[role=option]")) dialog.close();
});

export function open() {
  if (dialog.open) return;
  input.value = "";
  dialog.showModal();
  input.focus();
  search();
}
