// A check swaps the errors of a field and leaves the field alone: mark it here.

document.addEventListener("htmx:oobAfterSwap", ({ target }) => {
  if (!target.id.endsWith("_error")) return;
  const isWrong = target.childElementCount > 0;
  for (const field of document.querySelectorAll(
    `[aria-describedby~="${CSS.escape(target.id)}"]`,
  ))
    field.ariaInvalid = isWrong ? "true" : null;
});
