// Actions of each chart: full screen, downloads, a link, and its own y axis.

import { copyText, sayOn } from "../copy.js";
import { asCsv, savePicture, saveText } from "./download.js";

// Their buttons say what has come of them.
const STAYS_OPEN = new Set(["link", "csv"]);

export function offerActions({ root, board, view, onView }) {
  const dialog = document.querySelector("[data-chart-full]");
  const plotOf = (part) => part.closest(".chart").querySelector("[data-chart]");

  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-chart-action]");
    if (!button) return;
    const element = plotOf(button);
    const name = `${board.name}-${element.dataset.chart}`;
    const title = board.title(element);
    const act = {
      full: () => showFull(dialog, button),
      link: () => copyLink(button, view),
      png: () =>
        savePicture(element, { format: "png", name, title: `${board.name}: ${title}` }),
      svg: () =>
        savePicture(element, { format: "svg", name, title: `${board.name}: ${title}` }),
      csv: () => saveCsv(button, { board, element, name }),
    };
    act[button.dataset.chartAction]();
    const menu = button.closest("[data-menu]");
    if (menu && !STAYS_OPEN.has(button.dataset.chartAction)) menu.open = false;
  });

  root.addEventListener("change", (event) => {
    const box = event.target.closest("[data-chart-choice]");
    if (!box) return;
    view[box.dataset.chartChoice].toggle(plotOf(box).dataset.chart);
    onView();
  });
}

export function showChoices(root, view) {
  for (const box of root.querySelectorAll("[data-chart-choice]")) {
    const id = box.closest(".chart").querySelector("[data-chart]").dataset.chart;
    box.checked = view[box.dataset.chartChoice].has(id);
  }
}

// The card itself moves into the dialog, and back to where it was.
function showFull(dialog, button) {
  const card = button.closest(".chart");
  if (dialog.open) {
    dialog.close();
    return;
  }
  const placeholder = document.createElement("div");
  placeholder.className = "chart-placeholder";
  placeholder.style.height = `${card.offsetHeight}px`;
  card.replaceWith(placeholder);
  dialog.append(card);
  dialog.setAttribute("aria-label", card.querySelector(".chart-title").textContent);
  dialog.showModal();
  resize(card);
  button.focus();
  dialog.addEventListener(
    "close",
    () => {
      placeholder.replaceWith(card);
      resize(card);
      button.focus();
    },
    { once: true },
  );
}

function resize(card) {
  const plot = card.querySelector(".js-plotly-plot");
  if (plot) window.Plotly.Plots.resize(plot);
}

// Loads all steps first, since charts of a long run are downsampled.
async function saveCsv(button, { board, element, name }) {
  const was = button.textContent;
  button.disabled = true;
  button.textContent = "Loading all steps";
  try {
    const { data } = await board.fillWhole(element);
    saveText(`${name}.csv`, asCsv(data));
    button.closest("[data-menu]").open = false;
    button.textContent = was;
  } catch (error) {
    button.textContent = `Download failed: ${error.message}`;
    setTimeout(() => {
      button.textContent = was;
    }, 5_000);
  }
  button.disabled = false;
}

async function copyLink(button, view) {
  const url = new URL(location.href);
  url.search = view.write(location.search, { isWhole: true });
  url.hash = button.closest(".chart").id;
  const isCopied = await copyText(url.href);
  if (!isCopied) history.replaceState(history.state, "", url);
  sayOn(button, isCopied ? "Link copied" : "Copy the URL");
}
