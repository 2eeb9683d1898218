// Sends a file as soon as it is chosen or dropped: a small one with the form, a large one
// in resumable parts. Without this module, the form works as it is.

import { send, UploadServer } from "../datasets/server.js";
import { Refused, transfer } from "../datasets/transfer.js";
import { size } from "../live/numbers.js";

const isSame = (file, row) =>
  file.name === row.dataset.filename && file.size === Number(row.dataset.numBytes);

function findParts() {
  const form = document.querySelector("[data-upload]");
  return {
    form,
    zone: form.querySelector("[data-drop-zone]"),
    field: form.querySelector("input[type=file]"),
    tooLarge: form.querySelector("[data-too-large]"),
    bar: form.querySelector("[data-progress]"),
    status: form.querySelector("[data-progress-text]"),
    trouble: form.querySelector("[data-trouble]"),
    button: form.querySelector("[data-send]"),
    cancel: form.querySelector("[data-cancel]"),
    token: form.querySelector("[name=csrfmiddlewaretoken]").value,
  };
}

function takeFile(parts) {
  const { field, tooLarge } = parts;
  const limit = Number(field.dataset.maxBytes);
  const file = field.files[0];
  if (!file || parts.running) return;
  const isTooLarge = file.size > limit;
  tooLarge.hidden = !isTooLarge;
  tooLarge.textContent = isTooLarge
    ? `${file.name} has ${size(file.size)}; the limit is ${size(limit)}. Split it into several datasets.`
    : "";
  if (!isTooLarge) start(file, parts);
}

function isResumed(file) {
  const rows = [...document.querySelectorAll("[data-unfinished]")];
  return rows.some((row) => isSame(file, row));
}

function handleDrop(event, parts) {
  event.preventDefault();
  delete parts.zone.dataset.over;
  if (!event.dataTransfer.files.length) return;
  parts.field.files = event.dataTransfer.files;
  takeFile(parts);
}

async function start(file, parts) {
  parts.running = new AbortController();
  parts.began = performance.now();
  parts.status.textContent = isResumed(file)
    ? "Part of this file is already uploaded. The upload resumes there."
    : `Uploading ${file.name}…`;
  parts.trouble.textContent = "";
  showRunning(parts, true);
  try {
    const body = await upload(file, parts);
    parts.status.textContent = "Uploaded. Reading the first rows…";
    const finish = { body, signal: parts.running.signal };
    showAnswer(await send("POST", parts.form.action, finish), parts);
  } catch (error) {
    await showEnd(error, parts);
  } finally {
    parts.running = null;
  }
}

// Sends a large file; returns the form data that opens the mapping page.
async function upload(file, parts) {
  const { field, form, token, running } = parts;
  const partBytes = Number(field.dataset.partBytes);
  if (file.size <= partBytes) return new FormData(form);
  const address = form.dataset.uploads;
  const query = new URL(form.action).search;
  const server = new UploadServer({ address, query, token, signal: running.signal });
  const tell = {
    progress: (bytes) => {
      parts.first ??= bytes;
      showProgress(bytes, file.size, parts);
    },
    trouble: (seconds) => {
      parts.trouble.textContent = `Connection lost. Retrying in ${seconds} s.`;
    },
  };
  const wait = (seconds) => pause(seconds, running.signal);
  parts.upload = parts.first = null;
  const begin = server.begin.bind(server);
  server.begin = async (chosen) => {
    parts.upload = await begin(chosen);
    return parts.upload;
  };
  const sent = await transfer(file, partBytes, { server, tell, wait });
  const body = new FormData();
  body.append("csrfmiddlewaretoken", token);
  body.append("upload", sent.id);
  return body;
}

// Until the time is up, or the network is back.
function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(end, seconds * 1000);
    function end() {
      clearTimeout(timer);
      window.removeEventListener("online", end);
      signal.removeEventListener("abort", end);
      if (signal.aborted) reject(signal.reason);
      else resolve();
    }
    window.addEventListener("online", end);
    signal.addEventListener("abort", end);
  });
}

function showRunning({ bar, button, cancel }, isRunning) {
  bar.hidden = !isRunning;
  bar.value = 0;
  button.hidden = isRunning;
  cancel.hidden = !isRunning;
}

function showProgress(bytes, total, { bar, status, trouble, first, began }) {
  bar.value = total ? bytes / total : 0;
  const seconds = (performance.now() - began) / 1000;
  const rate = seconds > 1 && bytes > first ? (bytes - first) / seconds : 0;
  const speed = rate ? `, ${size(rate)}/s` : "";
  status.textContent = `${size(bytes)} of ${size(total)} uploaded${speed}`;
  trouble.textContent = "";
}

function showAnswer(request, { form }) {
  const { pathname, search } = new URL(form.action);
  if (new URL(request.responseURL).pathname !== pathname) {
    location.assign(request.responseURL);
    return;
  }
  // The upload page with errors; the form may stand on the list of datasets.
  const page = new DOMParser().parseFromString(request.responseText, "text/html");
  document.querySelector("main").replaceWith(page.querySelector("main"));
  history.replaceState(null, "", pathname + search);
  listen();
  document
    .querySelector(
      "[role=alert]:not([hidden], :empty), .field-error:not([hidden], :empty)",
    )
    ?.scrollIntoView({ block: "center" });
}

async function showEnd(error, parts) {
  showRunning(parts, false);
  parts.button.textContent = "Try again";
  if (parts.running.signal.aborted) {
    await discard(parts);
    parts.status.textContent = "Upload cancelled. The file was discarded.";
    parts.button.focus();
    return;
  }
  parts.status.textContent = "";
  parts.trouble.textContent =
    error instanceof Refused
      ? error.message
      : "Connection lost before the upload finished. Try again.";
}

async function discard({ form, token, upload }) {
  if (!upload) return;
  const body = new FormData();
  body.append("discard", "1");
  const address = `${form.dataset.uploads}/${upload.id}`;
  // If this fails, the file stays in the list of unfinished uploads.
  await send("POST", address, { body, token }).catch(() => {});
}

function listen() {
  const parts = findParts();
  const { form, zone, field, button, cancel } = parts;
  button.hidden = true;
  field.addEventListener("change", () => takeFile(parts));
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.dataset.over = "";
  });
  zone.addEventListener("dragleave", () => delete zone.dataset.over);
  zone.addEventListener("drop", (event) => handleDrop(event, parts));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    takeFile(parts);
  });
  cancel.addEventListener("click", () => parts.running?.abort());
  for (const resume of document.querySelectorAll("[data-resume]")) {
    resume.hidden = false;
    resume.addEventListener("click", () => field.click());
  }
}

// Addresses of the page before it had tabs.
if (location.hash === "#from-a-link" && !location.search.includes("from=")) {
  location.replace(`${location.search ? `${location.search}&` : "?"}from=link`);
} else if (document.querySelector("[data-upload]")) {
  listen();
}
