// A check swaps the errors of a field and leaves the field alone: mark it here.

document.addEventListener("htmx:oobAfterSwap", ({ target }) => {
  if (!target.id.endsWith("_error")) return;
  const isWrong = target.childElementCount > 0;
  for (const field of document.querySelectorAll(
    `[aria-describedby~="${CSS.escape(target.id)}"]`,
  ))
    field.ariaInvalid = isWrong ? "true" : null;
});

// A check follows a change, which a browser reports only when a field is left. While a
// function is typed, it is to be recognised meanwhile.
const TYPING_MS = 400;
let timer = 0;

document.addEventListener("input", ({ target }) => {
  if (!target.matches("#editor [data-is-program]")) return;
  clearTimeout(timer);
  timer = setTimeout(
    () => target.dispatchEvent(new Event("change", { bubbles: true })),
    TYPING_MS,
  );
});

// A field that is left sends its check by itself.
document.addEventListener("change", () => clearTimeout(timer));
