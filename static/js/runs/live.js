// Keeps the displayed rows current.

import { updateCurves } from "./curves.js";

const LIVE_MS = 3_000;
const IDLE_MS = 15_000;
const ENDED = new Set(["finished", "stopped", "failed"]);

const list = () => document.querySelector("[data-run-list]");

function write(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function update(row, live) {
  const badge = row.querySelector(".state");
  if (badge && badge.dataset.state !== live.state) {
    badge.dataset.state = live.state;
    badge.textContent = live.state;
  }
  for (const part of ["place", "done", "left", "silence"])
    write(row.querySelector(`[data-live=${part}]`), live[part]);
  if (live.spark)
    row.querySelector("[data-live=spark]")?.setAttribute("points", live.spark);
  const bar = row.querySelector("progress");
  if (bar) bar.value = live.step;
  for (const cell of row.querySelectorAll("[data-cell]")) {
    const text = live.cells[cell.dataset.cell];
    if (text !== undefined) write(cell, text);
  }
}

function announce(total) {
  const more = total - Number(list().dataset.total);
  const news = document.querySelector("[data-list-line] [data-news]");
  news.hidden = more <= 0;
  if (more > 0) news.closest("[data-list-line]").hidden = false;
  news.textContent = more === 1 ? "Show 1 new run" : `Show ${more} new runs`;
}

function rowsShown() {
  const rows = [...list().querySelectorAll("tr[data-run]")];
  const shown = new Map();
  // A run with two tags is in two groups.
  for (const row of rows) {
    shown.set(row.dataset.run, [...(shown.get(row.dataset.run) ?? []), row]);
  }
  return shown;
}

async function refresh() {
  const rows = rowsShown();
  const url = new URL(list().dataset.liveUrl, window.location.href);
  url.search = window.location.search;
  url.searchParams.set("ids", [...rows.keys()].join(","));
  const answer = await fetch(url, { headers: { Accept: "application/json" } });
  if (!answer.ok)
    throw new Error(`Failed to load the run list: HTTP ${answer.status}.`);
  const { total, rows: current } = await answer.json();
  for (const [id, live] of Object.entries(current)) {
    for (const row of rows.get(id) ?? []) update(row, live);
  }
  updateCurves(Object.values(current).flatMap(({ curve }) => curve ?? []));
  announce(total);
  return Object.values(current).some((live) => !ENDED.has(live.state));
}

async function keepCurrent() {
  let alive = false;
  if (!document.hidden && list()) {
    try {
      alive = await refresh();
    } catch (error) {
      console.warn(error); // the next try may find the server back
    }
  }
  setTimeout(keepCurrent, alive || document.hidden ? LIVE_MS : IDLE_MS);
}

export function startLive() {
  setTimeout(keepCurrent, LIVE_MS);
}
