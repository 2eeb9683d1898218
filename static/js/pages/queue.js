// The queue: a priority applies at once, and no refresh closes a list that is open.

const inQueue = (element) => element?.closest("#queue");

document.addEventListener("change", (event) => {
  const form = event.target.closest("[data-priority]");
  if (form) form.requestSubmit();
});

// A refresh would close an open list.
document.addEventListener("htmx:beforeRequest", (event) => {
  const isRefresh = event.target.id === "queue";
  const active = document.activeElement;
  if (isRefresh && active?.matches("select") && inQueue(active)) {
    event.preventDefault();
  }
});

// A conflict is a page of its own: the form is sent once more, without htmx.
document.addEventListener("htmx:responseError", ({ detail }) => {
  if (detail.xhr.status === 409) detail.elt.closest("form")?.submit();
});

// Move the focus off a button that the move disabled.
let pressed = "";
document.addEventListener("htmx:beforeSwap", () => {
  pressed = inQueue(document.activeElement) ? document.activeElement.id : "";
});
document.addEventListener("htmx:afterSettle", () => {
  const button = pressed && document.getElementById(pressed);
  if (!button?.disabled) return;
  button.closest("form").querySelector("button:enabled")?.focus();
});
