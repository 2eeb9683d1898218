// A file dropped on the zone lands in the plain file field, and the form is sent with
// its progress shown. Without this module it is an ordinary form.

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

function findParts() {
  const form = document.querySelector("[data-upload]");
  return {
    form,
    zone: form.querySelector("[data-drop-zone]"),
    field: form.querySelector("input[type=file]"),
    tooLarge: form.querySelector("[data-too-large]"),
    bar: form.querySelector("[data-progress]"),
    status: form.querySelector("[data-progress-text]"),
    button: form.querySelector("button"),
  };
}

function checkSize({ field, tooLarge, button }) {
  const limit = Number(field.dataset.maxBytes);
  const file = field.files[0];
  const isTooLarge = Boolean(file && file.size > limit);
  tooLarge.hidden = !isTooLarge;
  button.disabled = isTooLarge;
  tooLarge.textContent = isTooLarge
    ? `${file.name} has ${megabytes(file.size)}; ${megabytes(limit)} are allowed. Split it into several datasets.`
    : "";
}

function takeDrop(event, parts) {
  event.preventDefault();
  delete parts.zone.dataset.over;
  if (!event.dataTransfer.files.length) return;
  parts.field.files = event.dataTransfer.files;
  checkSize(parts);
}

function send(event, parts) {
  event.preventDefault();
  parts.button.disabled = true;
  parts.bar.hidden = false;
  const request = new XMLHttpRequest();
  request.upload.addEventListener("progress", (e) => showProgress(e, parts));
  request.addEventListener("load", () => showAnswer(request));
  request.addEventListener("error", () => showFailure(parts));
  request.open("POST", location.href);
  request.send(new FormData(parts.form));
}

function showProgress({ loaded, total }, { bar, status }) {
  bar.value = total ? loaded / total : 0;
  status.textContent =
    loaded < total
      ? `${megabytes(loaded)} of ${megabytes(total)} sent`
      : "Sent. Reading the first rows…";
}

function showAnswer(request) {
  if (request.responseURL !== location.href) {
    location.assign(request.responseURL);
    return;
  }
  // The same page again, now with what was refused.
  const page = new DOMParser().parseFromString(request.responseText, "text/html");
  document.querySelector("main").replaceWith(page.querySelector("main"));
  start();
  document
    .querySelector("[role=alert]:not([hidden]), .field-error:not([hidden])")
    ?.scrollIntoView({ block: "center" });
}

function showFailure({ button, bar, status }) {
  button.disabled = false;
  bar.hidden = true;
  status.textContent =
    "The connection broke off before the file arrived. Try it again.";
}

function start() {
  const parts = findParts();
  const { form, zone, field } = parts;
  field.addEventListener("change", () => checkSize(parts));
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.dataset.over = "";
  });
  zone.addEventListener("dragleave", () => delete zone.dataset.over);
  zone.addEventListener("drop", (event) => takeDrop(event, parts));
  form.addEventListener("submit", (event) => send(event, parts));
}

start();
