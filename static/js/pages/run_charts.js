// The charts of a page of one run with their controls: the overview and Metrics.
// Dispatches "runview" on document when they are to be drawn otherwise.

import { store } from "./run.js";
import { alerts } from "./run_alerts.js";
import { offerActions } from "../charts/actions.js";
import { Board } from "../charts/board.js";
import { Closeups } from "../charts/closeups.js";
import { Parents } from "../charts/parents.js";
import { Toolbar } from "../charts/toolbar.js";
import { View } from "../charts/view.js";

const env = {
  fetch: window.fetch.bind(window),
  setTimeout: window.setTimeout.bind(window),
  now: () => performance.now(),
};

// `onPoint` receives the step of a point that is clicked; it opens the step's groups.
// `marks` are drawn as alerts are.
export function drawRunCharts({ figures, onPoint, marks = () => [] }) {
  const root = document.querySelector("[data-charts]");
  const form = document.querySelector("[data-chart-controls]");
  const trouble = form.querySelector("[data-points-status]");
  const view = new View({ kept: form.dataset.kept, address: location.search });
  const closeups = new Closeups({
    url: root.dataset.curves,
    store,
    env,
    onFound: () => board.refresh(),
    onTrouble: (message) => {
      const text = message && `Failed to load finer points (${message}).`;
      if (trouble.textContent !== text) trouble.textContent = text;
    },
  });
  const parents = new Parents({
    ancestors: JSON.parse(document.getElementById("ancestors").textContent),
    env,
    onLoaded: () => board.refresh(),
  });
  const board = new Board({
    root,
    figures,
    store,
    view,
    closeups,
    parents,
    alerts: () => [...alerts, ...marks()],
    onPoint:
      onPoint ?? ((step) => location.assign(`${root.dataset.groups}?step=${step}`)),
    onZoom: (range) => toolbar.zoom(range),
  });
  const onChange = () => {
    board.refresh();
    document.dispatchEvent(new CustomEvent("runview"));
  };
  const toolbar = new Toolbar({ form, root, view, store, onChange });
  offerActions({ root, board, view, onView: () => toolbar.changed() });
  document.addEventListener("runframe", () => {
    toolbar.showRun();
    board.refresh();
  });
  document.addEventListener("runalerts", () => board.refresh());
  return { root, board, toolbar, view };
}
