// The number of alerts on every page of a run, fetched again when a frame announces a
// change. Dispatches "runalerts" on document (event.detail is the list).

import { countOpen, describeFiring } from "../live/alerts.js";
import { setText } from "../live/announce.js";

const bar = document.querySelector("[data-run-alerts]");
const badge = document.querySelector("[data-open-alerts]");
const RETRY_AFTER = 4_000;

export let alerts = JSON.parse(document.getElementById("run-alerts").textContent);
let wanted = Number(bar.dataset.seq);
let held = wanted;
let isAsking = false;

function show() {
  const { count, newest, isShown } = describeFiring(alerts);
  bar.hidden = !isShown;
  setText(bar.querySelector("[data-alerts-count]"), count);
  bar.querySelector("[data-alerts-newest]").title = newest;
  const numOpen = countOpen(alerts);
  badge.hidden = !numOpen;
  setText(badge.querySelector("[data-num-open]"), String(numOpen));
}

async function fetchAlerts() {
  if (isAsking) return;
  isAsking = true;
  const answer = await fetch(bar.dataset.url).catch(() => null);
  const found = answer?.ok ? await answer.json().catch(() => null) : null;
  isAsking = false;
  if (found) {
    held = found.seq;
    alerts = found.alerts;
    show();
    document.dispatchEvent(new CustomEvent("runalerts", { detail: alerts }));
  }
  // Another change may have arrived, or the response may have been lost.
  if (held < wanted) setTimeout(fetchAlerts, found ? 0 : RETRY_AFTER);
}

document.addEventListener("runframe", ({ detail }) => {
  wanted = Math.max(wanted, detail.run.alerts_seq);
  if (held < wanted) fetchAlerts();
});
