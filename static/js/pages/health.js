// The checks of a run: an open row has its chart and its place in the address.
import { drawCards } from "../charts/cards.js";

const rows = [...document.querySelectorAll("details[data-hash]")];

function openNamed() {
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!rows.includes(row)) return;
  row.open = true;
  row.scrollIntoView({ block: "nearest" });
}

for (const row of rows) {
  row.addEventListener("toggle", () => {
    if (row.open) history.replaceState(null, "", `#${encodeURIComponent(row.id)}`);
    else if (location.hash === `#${encodeURIComponent(row.id)}`)
      history.replaceState(null, "", location.pathname + location.search);
  });
}
window.addEventListener("hashchange", openNamed);
openNamed();

if (document.querySelector("[data-figure]"))
  drawCards("health-figures", (plot, { x }) => {
    location.assign(`${plot.dataset.groups}?step=${x}`);
  });
