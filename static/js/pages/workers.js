// The workers as they are now, without a reload.

import { patch } from "../live/patch.js";

const REFRESH_MS = 5_000;
const root = document.getElementById("workers");

async function refresh() {
  if (document.hidden) return;
  const answer = await fetch(location.href).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const newer = page.getElementById("workers");
  if (newer) patch(root, newer);
}

setInterval(refresh, REFRESH_MS);
document.addEventListener("visibilitychange", refresh);
