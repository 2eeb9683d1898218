// A rule's form shows the fields that its condition needs.

const form = document.querySelector("[data-rule-form]");
const kind = form?.querySelector("[name=kind]");

function showFields() {
  const field = (name) => form.querySelector(`[data-field=${name}]`);
  field("threshold").hidden = kind.value === "missing";
  field("back").hidden = kind.value !== "changes";
  field("threshold").querySelector("label").textContent =
    kind.value === "changes" ? "Per cent" : "Value";
}

if (kind) {
  kind.addEventListener("change", showFields);
  showFields();
}
