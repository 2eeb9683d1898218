// Compute, kept current. A priority applies at once; no refresh closes an open list.

import { patch } from "../live/patch.js";

const REFRESH_MS = 5_000;
const root = () => document.getElementById("compute");

async function refresh() {
  if (document.hidden || document.activeElement?.matches("#compute select")) return;
  const answer = await fetch(location.href).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const newer = page.getElementById("compute");
  if (!newer) return;
  patch(root(), newer);
  window.htmx.process(root());
}

setInterval(refresh, REFRESH_MS);
document.addEventListener("visibilitychange", refresh);

document.addEventListener("change", (event) => {
  const form = event.target.closest("[data-priority]");
  if (form) form.requestSubmit();
});

// A conflict is a page of its own: the form is sent once more, without htmx.
document.addEventListener("htmx:responseError", ({ detail }) => {
  if (detail.xhr.status === 409) detail.elt.closest("form")?.submit();
});
