// The run list: filters that apply at once, selection, and rows that stay current.

const LIVE_MS = 3_000;
const IDLE_MS = 15_000;
const ENDED = new Set(["finished", "stopped", "failed"]);

const list = document.querySelector("[data-run-list]");
const filters = document.querySelector(".filters");

function applyAtOnce() {
  filters.classList.add("is-live");
  filters.addEventListener("change", () => filters.requestSubmit());
  // Empty parameters would only make the address long.
  filters.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) {
      if (value === "") formData.delete(name);
    }
  });
}

const ticks = () => [...list.querySelectorAll("input[name=runs]")];

function showSelection() {
  const chosen = ticks().filter((tick) => tick.checked);
  for (const tick of ticks()) {
    tick.closest("tr").classList.toggle("is-selected", tick.checked);
  }
  const all = list.querySelector("[data-tick-all]");
  if (all) {
    all.checked = chosen.length > 0 && chosen.length === ticks().length;
    all.indeterminate = chosen.length > 0 && !all.checked;
  }
  list.querySelector("[data-compare]").disabled = chosen.length < 2;
  list.querySelector("[data-selected]").textContent =
    chosen.length < 2
      ? "Tick two or more runs to compare them."
      : `${chosen.length} selected`;
}

function select() {
  list.addEventListener("change", (event) => {
    if (event.target.matches("[data-tick-all]")) {
      for (const tick of ticks()) tick.checked = event.target.checked;
    }
    showSelection();
  });
  list.addEventListener("submit", (event) => {
    event.preventDefault();
    const chosen = ticks().filter((tick) => tick.checked);
    const runs = chosen.map((tick) => tick.value).join(",");
    window.location.assign(`${list.action}?runs=${runs}`);
  });
  // Back in the history restores ticks without an event.
  window.addEventListener("pageshow", showSelection);
  showSelection();
}

function update(row, live) {
  const badge = row.querySelector(".state");
  if (badge.dataset.state !== live.state) {
    badge.dataset.state = live.state;
    badge.textContent = live.state;
  }
  row.querySelector("progress").value = live.step;
  for (const cell of row.querySelectorAll("[data-live]")) {
    const text = live[cell.dataset.live];
    if (cell.textContent !== text) cell.textContent = text;
  }
}

function announce(total) {
  const more = total - Number(list.dataset.total);
  const news = list.querySelector("[data-news]");
  news.hidden = more <= 0;
  news.textContent = more === 1 ? "1 new run: show it" : `${more} new runs: show them`;
}

async function refresh() {
  const rows = new Map(
    [...list.querySelectorAll("tr[data-run]")].map((row) => [row.dataset.run, row]),
  );
  const url = new URL(list.dataset.liveUrl, window.location.href);
  url.search = window.location.search;
  url.searchParams.set("ids", [...rows.keys()].join(","));
  const answer = await fetch(url, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`The run list answered ${answer.status}.`);
  const { total, rows: current } = await answer.json();
  for (const [id, live] of Object.entries(current)) update(rows.get(id), live);
  announce(total);
  return Object.values(current).some((live) => !ENDED.has(live.state));
}

async function keepCurrent() {
  let alive = false;
  if (!document.hidden) {
    try {
      alive = await refresh();
    } catch (error) {
      console.warn(error); // the next try may find the server back
    }
  }
  setTimeout(keepCurrent, alive || document.hidden ? LIVE_MS : IDLE_MS);
}

if (list) {
  applyAtOnce();
  select();
  setTimeout(keepCurrent, LIVE_MS);
}
