// The launch form: shows the box for another model only when it is meant, and takes
// the reader to what is wrong. The summary beside it is htmx's work.

const form = document.getElementById("launch-form");
const model = form.elements.model;
const other = form.querySelector("[data-other-model]");

function showOther() {
  other.hidden = model.value !== "";
}

model.addEventListener("change", showOther);
showOther();

const wrong = form.querySelector("[aria-invalid=true], [data-problems]");
if (wrong) wrong.focus();
