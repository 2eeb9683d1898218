// The run list: a query with completion, columns, selection, rows that stay current.

import { startColumns } from "../runs/columns.js";
import { startCurves } from "../runs/curves.js";
import { startLive } from "../runs/live.js";
import { startQueryBox } from "../runs/query_box.js";
import { startSelection } from "../runs/selection.js";
import { knownKeys } from "../runs/suggestions.js";

const filters = document.querySelector("[data-filters]");

function applyAtOnce() {
  filters.addEventListener("change", ({ target }) => {
    if (target.matches("select")) filters.requestSubmit();
  });
  // Empty parameters would only make the address long.
  filters.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) {
      if (value === "") formData.delete(name);
    }
    // An address without parameters would open the default view.
    if (![...formData].length) formData.set("view", "");
  });
}

async function offerSettingsToGroupBy() {
  const { settings } = await knownKeys();
  const list = document.getElementById("group-keys");
  for (const { key } of settings) {
    const option = document.createElement("option");
    option.value = key;
    list.append(option);
  }
}

if (filters) {
  applyAtOnce();
  for (const button of filters.querySelectorAll("[data-without-script]"))
    button.hidden = true;
  startQueryBox(filters.querySelector("[data-query-box]"));
  startColumns(filters.querySelector("[data-open-columns]"), filters);
  filters
    .querySelector("#filter-by")
    .addEventListener(
      "focus",
      () => offerSettingsToGroupBy().catch((error) => console.warn(error)),
      { once: true },
    );
}
if (document.querySelector("[data-run-list]")) {
  startSelection();
  startCurves();
  startLive();
}
