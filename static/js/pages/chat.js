// The answers to a question grow as they are written; what else changes is fetched.

import { patch } from "../live/patch.js";
import { RunStream } from "../live/stream.js";

const LOOK_EVERY = 2_000; // at a question's place in the queue
const SOON = 200;
const END_PIXELS = 8;

const root = document.getElementById("chat-answers");
const texts = new Map(); // "model-place": { text, num_tokens }, while it is written
let isLooking = false;
let shape = root.dataset.shape; // of the newest frame

function onFrame(frame) {
  if (frame.type === "snapshot") texts.clear();
  for (const { model, place, text, is_whole, num_tokens } of frame.texts) {
    const key = `${model}-${place}`;
    const before = is_whole ? "" : (texts.get(key)?.text ?? "");
    texts.set(key, { text: before + text, num_tokens });
  }
  showTexts();
  shape = frame.shape;
  if (shape !== root.dataset.shape) look();
  if (!frame.is_open) stream.stop();
}

function showTexts() {
  for (const [key, { text, num_tokens }] of texts) {
    const block = root.querySelector(`[data-chat-text="${key}"]`);
    if (!block) continue; // it is not on the page yet, or has ended
    const count = num_tokens.toLocaleString("en-US");
    root.querySelector(`[data-chat-tokens="${key}"]`).textContent = count;
    grow(block, text);
  }
}

// Only what is new is added, so that a selection stays; who reads its end follows it.
function grow(block, text) {
  const { scrollHeight, scrollTop, clientHeight } = block;
  const isAtEnd = scrollHeight - scrollTop - clientHeight < END_PIXELS;
  const shown = block.textContent;
  if (shown.startsWith(text) && text) return; // the page came later than the frame
  if (shown && text.startsWith(shown) && block.lastChild?.nodeType === Node.TEXT_NODE)
    block.lastChild.appendData(text.slice(shown.length));
  else block.textContent = text;
  if (isAtEnd) block.scrollTop = block.scrollHeight;
}

// Until the page shows what the newest frame is of.
async function look() {
  if (isLooking) return;
  isLooking = true;
  const answer = await fetch(root.dataset.page).catch(() => null);
  const isThere = answer?.ok && !answer.redirected;
  const text = isThere ? await answer.text().catch(() => "") : "";
  isLooking = false;
  const page = new DOMParser().parseFromString(text, "text/html");
  const newer = page.getElementById("chat-answers");
  if (newer) {
    patch(root, newer);
    showTexts();
  }
  if (shape !== root.dataset.shape) setTimeout(look, newer ? SOON : LOOK_EVERY);
}

const scheme = location.protocol === "https:" ? "wss" : "ws";
const stream = new RunStream({
  socketUrl: `${scheme}://${location.host}${root.dataset.socket}`,
  httpUrl: root.dataset.stream,
  onFrame,
  env: {
    WebSocket: window.WebSocket,
    fetch: window.fetch.bind(window),
    setTimeout: window.setTimeout.bind(window),
    clearTimeout: window.clearTimeout.bind(window),
    random: Math.random,
  },
});

if ("open" in root.dataset) {
  stream.start();
  setInterval(() => {
    if (root.dataset.state === "queued" && !document.hidden) look();
  }, LOOK_EVERY);
  window.addEventListener("online", () => stream.retryNow());
}
