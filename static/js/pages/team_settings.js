// A role is saved when it is chosen. The arrow keys pass others on their way to it, so
// after them it is saved when the field is left, or with Enter.

const formOf = (target) => target.closest?.("[data-sent-on-change]");

document.addEventListener("change", ({ target }) => {
  const form = formOf(target);
  if (form && !("passes" in form.dataset)) form.requestSubmit();
});

document.addEventListener("keydown", ({ key, target }) => {
  const form = formOf(target);
  if (!form) return;
  if (key.startsWith("Arrow")) form.dataset.passes = "";
  else if (key === "Enter") save(form, target);
});

document.addEventListener("focusout", ({ target }) => {
  const form = formOf(target);
  if (form) save(form, target);
});

function save(form, select) {
  if (!("passes" in form.dataset)) return;
  delete form.dataset.passes;
  if (!select.selectedOptions?.[0]?.defaultSelected) form.requestSubmit();
}
