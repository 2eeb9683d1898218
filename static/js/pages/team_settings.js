// A role is saved when it is chosen.

document.addEventListener("change", ({ target }) => {
  target.closest("[data-sent-on-change]")?.requestSubmit();
});
