// One click on the link is enough; the button is for browsers without scripts.
const form = document.querySelector("[data-submit-by-itself]");

// A page the browser renders ahead, unasked, must not use the link up.
if (document.prerendering) {
  document.addEventListener("prerenderingchange", () => form.submit(), {
    once: true,
  });
} else {
  form.submit();
}
