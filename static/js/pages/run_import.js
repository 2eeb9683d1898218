// Uploads the chosen files one after another, in parts that resume after a broken
// connection. Without this module the form uploads them.

import { send, UploadServer } from "../datasets/server.js";
import { Refused, transfer } from "../datasets/transfer.js";
import { size } from "../live/numbers.js";

function findParts(form) {
  return {
    form,
    field: form.querySelector("input[type=file]"),
    bar: form.querySelector("[data-progress]"),
    status: form.querySelector("[data-progress-text]"),
    trouble: form.querySelector("[data-trouble]"),
    button: form.querySelector("[data-send]"),
    cancel: form.querySelector("[data-cancel]"),
    token: form.querySelector("[name=csrfmiddlewaretoken]").value,
  };
}

async function submit(event, parts) {
  event.preventDefault();
  const files = [...parts.field.files];
  if (!files.length || parts.running) return;
  parts.running = new AbortController();
  parts.trouble.textContent = "";
  show(parts, true);
  try {
    const address = await begin(parts);
    await sendAll(files, address, parts);
    location.assign(await ask(address, "read", parts));
  } catch (error) {
    await end(error, parts);
  } finally {
    parts.running = null;
  }
}

// The address of a new import.
async function begin(parts) {
  parts.import = null;
  const address = await ask(location.pathname, "begin", parts);
  if (new URL(address).pathname === location.pathname) {
    throw new Refused("No import can be begun. Reload the page to see why.");
  }
  parts.import = address;
  return address;
}

async function ask(address, what, { token, running }) {
  const body = new FormData();
  body.append(what, "1");
  const answer = await send("POST", address, { body, token, signal: running.signal });
  if (answer.status < 400) return answer.responseURL;
  const page = new DOMParser().parseFromString(answer.responseText, "text/html");
  const said = page.querySelector("[data-trouble]")?.textContent.trim();
  throw new Refused(said || `The server answered ${answer.status}. Reload the page.`);
}

async function sendAll(files, address, parts) {
  const { form, token, running } = parts;
  const server = new UploadServer({
    address: `${address}files`,
    query: "",
    token,
    signal: running.signal,
  });
  const total = files.reduce((sum, file) => sum + file.size, 0);
  let before = 0;
  for (const [i, file] of files.entries()) {
    const tell = {
      progress: (bytes) => {
        parts.bar.value = total ? (before + bytes) / total : 0;
        parts.status.textContent = `${i} of ${files.length} files, ${size(before + bytes)} of ${size(total)} sent`;
        parts.trouble.textContent = "";
      },
      trouble: (seconds) => {
        parts.trouble.textContent = `Connection lost. Retrying in ${seconds} s.`;
      },
    };
    const wait = (seconds) => rest(seconds, running.signal);
    await transfer(file, Number(form.dataset.partBytes), { server, tell, wait });
    before += file.size;
  }
  parts.status.textContent = "Sent. Reading…";
}

function rest(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

function show({ bar, button, cancel }, isRunning) {
  bar.hidden = !isRunning;
  bar.value = 0;
  button.disabled = isRunning;
  cancel.hidden = !isRunning;
}

async function end(error, parts) {
  show(parts, false);
  parts.status.textContent = "";
  const body = new FormData();
  body.append("discard", "1");
  // If this fails, the import stays in the list of unfinished imports.
  if (parts.import) {
    await send("POST", parts.import, { body, token: parts.token }).catch(() => {});
  }
  if (parts.running.signal.aborted) {
    parts.status.textContent = "Upload cancelled. Cohort deleted the uploaded files.";
    parts.button.focus();
    return;
  }
  parts.trouble.textContent =
    error instanceof Refused
      ? error.message
      : "Connection lost before the upload finished. Try again.";
}

const form = document.querySelector("[data-import]");
if (form) {
  const parts = findParts(form);
  form.querySelector("[data-without-script]").hidden = true;
  form.addEventListener("submit", (event) => submit(event, parts));
  parts.cancel.addEventListener("click", () => parts.running?.abort());
}
