// The report editor: a live preview, and blocks inserted at the cursor.

const form = document.getElementById("report-form");
const text = form.elements.text;
const preview = document.getElementById("preview");
const status = document.querySelector("[data-editor-status]");
const saved = { title: form.elements.title.value, text: text.value };
let isLeaving = false;
let newest = 0;
let waiting;

const isChanged = () =>
  form.elements.title.value !== saved.title || text.value !== saved.text;

async function renew() {
  const turn = ++newest;
  const body = new FormData(form);
  try {
    const response = await fetch(preview.dataset.previewSource, {
      method: "POST",
      body,
    });
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    const html = await response.text();
    // Only the response to the newest text is shown.
    if (turn !== newest) return;
    const top = preview.scrollTop;
    preview.innerHTML = html;
    preview.scrollTop = top;
    say();
  } catch (error) {
    if (turn === newest)
      status.textContent = `Preview failed: ${error.message}. Your text is unchanged.`;
  }
}

function say() {
  status.textContent = isChanged() ? "Unsaved changes" : "";
}

form.addEventListener("input", () => {
  say();
  clearTimeout(waiting);
  waiting = setTimeout(renew, 500);
});
form.addEventListener("submit", () => {
  isLeaving = true;
});
addEventListener("beforeunload", (event) => {
  if (!isLeaving && isChanged()) event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "s") {
    event.preventDefault();
    form.requestSubmit();
  }
});

// On its own line, with an empty line on either side.
function insert(line) {
  const before = text.value.slice(0, text.selectionStart).trimEnd();
  const after = text.value.slice(text.selectionEnd).trimStart();
  const head = before ? `${before}\n\n` : "";
  text.value = `${head}${line}\n\n${after}`;
  const at = head.length + line.length + 2;
  text.focus();
  text.setSelectionRange(at, at);
  form.dispatchEvent(new Event("input"));
}

const card = document.querySelector("[data-insert-card]");
card.hidden = false;
card.addEventListener("click", (event) => {
  const button = event.target.closest("[data-insert]");
  const line = card.querySelector("[data-insert-line]");
  if (button && line) insert(line.textContent);
});
say();
