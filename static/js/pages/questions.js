// A question's chart; a ready question fills the form.
import { drawCards } from "../charts/cards.js";
import { bindKeys } from "../keys.js";

bindKeys();

for (const button of document.querySelectorAll("[data-question]")) {
  button.addEventListener("click", () => {
    const field = document.getElementById("id_text");
    field.value = button.dataset.question;
    field.focus();
  });
}

if (document.getElementById("question-figures")) {
  drawCards("question-figures", () => {});
}
