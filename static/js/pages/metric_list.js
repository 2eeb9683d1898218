// The list of metrics at the side: which charts are chosen and in which order, kept in
// the address. Nothing chosen shows all of them.

import {
  compareGroups,
  compareMetrics,
  groupOf,
  insertInOrder,
  titleOf,
} from "../live/metric_titles.js";
import { drawnWith } from "../live/numbers.js";

const PREFIX = "chart-";

// The id of a card, from a metric's name or from the code of its chart.
export function cardId(name) {
  return (
    PREFIX + name.replaceAll(/[^A-Za-z0-9_]+/g, "-").replaceAll(/^[-_]+|[-_]+$/g, "")
  );
}

export class MetricList {
  #root;
  #items = new Map(); // id of a card -> item
  #wasSearched = false;
  #onChange;
  chosen = new Set(); // ids of cards, in their order

  constructor(root, { onChange }) {
    this.#root = root;
    this.#onChange = onChange;
    const names = new URLSearchParams(location.search).get("show")?.split(",") ?? [];
    for (const name of names.filter(Boolean)) this.chosen.add(cardId(drawnWith(name)));
    for (const item of root.querySelectorAll("[data-item]")) this.#add(item);
    root.addEventListener("change", ({ target }) => {
      const item = target.closest("[data-item]");
      if (!item) return;
      if (target.checked) this.chosen.add(item.dataset.item);
      else this.chosen.delete(item.dataset.item);
      this.#changed();
    });
    root.querySelector("[data-show-all]").addEventListener("click", () => {
      this.chosen.clear();
      for (const item of this.#items.values())
        item.querySelector("input").checked = false;
      this.#changed();
    });
    root.addEventListener("click", ({ target }) => {
      const group = target.closest("summary")?.parentElement;
      if (group && !group.open) scrollTo(group.dataset.listGroup);
    });
    const open = root.querySelector("[data-list-open]");
    open.addEventListener("click", () => {
      open.ariaExpanded = String(open.ariaExpanded !== "true");
    });
  }

  get isNarrowed() {
    return this.chosen.size > 0;
  }

  has(id) {
    return !this.isNarrowed || this.chosen.has(id);
  }

  metrics() {
    const listed = this.#root.querySelectorAll("[data-listed]");
    return [...listed].map(({ dataset }) => dataset.listed);
  }

  // A metric that came while one looks.
  addMetric(metric, id) {
    const title = groupOf(metric);
    const groups = this.#root.querySelector("#metric-groups");
    let group = groups.querySelector(`[data-list-group="${CSS.escape(title)}"]`);
    if (!group) {
      group = document.createElement("details");
      group.className = "metric-group";
      group.dataset.listGroup = title;
      const summary = document.createElement("summary");
      const count = makePart("number text-quiet", "");
      count.dataset.listCount = "";
      summary.append(title, " ", count);
      group.append(summary);
      insertInOrder(groups, group, ({ dataset }) => dataset.listGroup, compareGroups);
    }
    const item = document.createElement("label");
    item.className = "metric-item";
    item.dataset.item = id;
    item.dataset.listed = metric;
    item.dataset.name = metric;
    const box = document.createElement("input");
    box.type = "checkbox";
    box.title = "Show only ticked charts";
    item.append(box, " ", makePart("metric-name", titleOf(metric)), " ");
    item
      .querySelector(".metric-name")
      .append(
        " ",
        makePart("d-block text-truncate text-quiet font-monospace fs-5", metric),
      );
    const last = makePart("number", "");
    last.dataset.listedLast = "";
    item.append(last);
    const keyOf = ({ dataset }) => dataset.listed ?? "";
    insertInOrder(group, item, keyOf, compareItems);
    this.#add(item);
  }

  showLast(metric, text) {
    const item = this.#root.querySelector(`[data-listed="${CSS.escape(metric)}"]`);
    const last = item?.querySelector("[data-listed-last]");
    if (last && last.textContent !== text) last.textContent = text;
  }

  markPinned(names) {
    for (const item of this.#items.values())
      item.toggleAttribute("data-is-pinned", names.includes(item.dataset.name));
  }

  // `isListed` says of a card's id whether the search found it. Groups are an index, and
  // open for what was found or ticked.
  filter(isListed, { isSearched }) {
    for (const [id, item] of this.#items) item.hidden = !isListed(id);
    for (const group of this.#root.querySelectorAll("[data-list-group]")) {
      const count = group.querySelectorAll(
        "[data-item]:not([hidden], [data-lacks])",
      ).length;
      group.hidden = !count;
      group.querySelector("[data-list-count]").textContent = count;
      if (isSearched || group.querySelector(":checked")) group.open = true;
      else if (this.#wasSearched) group.open = false;
    }
    this.#wasSearched = isSearched;
    this.#root.querySelector("[data-show-all]").hidden = !this.isNarrowed;
  }

  #add(item) {
    this.#items.set(item.dataset.item, item);
    item.querySelector("input").checked = this.chosen.has(item.dataset.item);
  }

  // Charts that the run does not have keep their places.
  move(id, other, isAfter) {
    const ids = [...this.chosen].filter((chosen) => chosen !== id);
    ids.splice(ids.indexOf(other) + Number(isAfter), 0, id);
    this.chosen = new Set(ids);
    this.#changed();
  }

  remove(id) {
    this.chosen.delete(id);
    const item = this.#items.get(id);
    if (item) item.querySelector("input").checked = false;
    this.#changed();
  }

  #changed() {
    this.#write();
    this.#onChange();
  }

  #write() {
    const url = new URL(location.href);
    const names = [...this.chosen].map((id) => id.slice(PREFIX.length));
    if (names.length) url.searchParams.set("show", names.join(","));
    else {
      url.searchParams.delete("show");
      if (url.searchParams.has("board")) url.searchParams.set("board", "");
    }
    url.search = url.search.replaceAll("%2C", ",");
    history.replaceState(history.state, "", url);
  }
}

function scrollTo(title) {
  const section = document.querySelector(`[data-group="${CSS.escape(title)}"]`);
  section?.scrollIntoView({ block: "start" });
}

function makePart(className, text) {
  const part = document.createElement("span");
  part.className = className;
  part.textContent = text;
  return part;
}

// Charts of several metrics come first.
function compareItems(one, other) {
  return one && other ? compareMetrics(one, other) : Number(!other) - Number(!one);
}
