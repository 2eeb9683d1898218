// The charts that stand first: the team's pinned ones or, where some are ticked, these
// in the order of the address. Dragged, or moved by buttons and arrow keys.

import { setText } from "../live/announce.js";

const STEPS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
const EDGE = 64; // px from the window's edges, where dragging scrolls
const SCROLLED = 12; // px a frame
const IS_SHOWN = ":not([hidden], [data-lacks])";

export class ArrangedCharts {
  #holders = new Map(); // card -> what keeps its place in its group
  #drag = null; // { card, target, isAfter, x, y }

  // `list` has the ticked charts and their order.
  constructor({ section, button, list }) {
    Object.assign(this, { section, button, list });
    this.grid = section.querySelector(".chart-grid");
    this.tools = document.getElementById("chart-order");
    this.status = section.querySelector("[data-order-status]");
    button.addEventListener("click", () => {
      button.ariaPressed = String(button.ariaPressed !== "true");
      this.#offer();
    });
    this.grid.addEventListener("click", (event) => this.#press(event));
    this.grid.addEventListener("keydown", (event) => this.#pressKey(event));
    this.grid.addEventListener("pointerdown", (event) => this.#lift(event));
    this.grid.addEventListener("pointermove", (event) => this.#carry(event));
    this.grid.addEventListener("pointerup", () => this.#drop());
    this.grid.addEventListener("pointercancel", () => this.#letGo());
  }

  get isArranging() {
    return this.list.isNarrowed && this.button.ariaPressed === "true";
  }

  // Moves these cards here, in this order, and the others back into their groups.
  place(cards) {
    if (document.querySelector("dialog[open] .chart")) return; // in full screen
    for (const [card, holder] of this.#holders)
      if (!cards.includes(card)) {
        holder.replaceWith(card);
        this.#holders.delete(card);
        card.querySelector("[data-chart-order]")?.remove();
      }
    cards.forEach((card, i) => {
      if (!this.#holders.has(card)) {
        const holder = document.createElement("template");
        holder.dataset.metric = card.dataset.metric ?? "";
        card.replaceWith(holder);
        this.#holders.set(card, holder);
      }
      const other = this.grid.children[i];
      if (other !== card) this.grid.insertBefore(card, other ?? null);
    });
  }

  // After cards were placed, shown or hidden.
  update() {
    this.button.hidden = !this.list.isNarrowed;
    this.#offer();
  }

  #shown() {
    return [...this.grid.querySelectorAll(`:scope > .chart${IS_SHOWN}`)];
  }

  #offer() {
    const { isArranging } = this;
    this.section.toggleAttribute("data-arranging", isArranging);
    const cards = this.#shown();
    for (const [i, card] of cards.entries()) {
      let tools = card.querySelector("[data-chart-order]");
      if (!isArranging) {
        tools?.remove();
        continue;
      }
      if (!tools) {
        tools = this.#makeTools(card);
        card.prepend(tools);
      }
      setText(tools.querySelector("[data-place]"), `${i + 1} of ${cards.length}`);
      const [earlier, later] = tools.querySelectorAll("[data-move]");
      // Not disabled, as a disabled button loses the focus.
      earlier.ariaDisabled = String(i === 0);
      later.ariaDisabled = String(i === cards.length - 1);
    }
  }

  #makeTools(card) {
    const tools = this.tools.content.firstElementChild.cloneNode(true);
    for (const part of [tools, ...tools.querySelectorAll("[aria-label]")])
      part.ariaLabel = part.ariaLabel.replace("…", titleOf(card));
    return tools;
  }

  #press({ target }) {
    const button = target.closest("[data-chart-order] button");
    if (!button) return;
    const card = button.closest(".chart");
    if (button.dataset.move) this.#step(card, Number(button.dataset.move), button);
    else this.#remove(card);
  }

  #pressKey(event) {
    const button = event.target.closest("[data-chart-order] button");
    if (!button || !(event.key in STEPS)) return;
    event.preventDefault();
    this.#step(button.closest(".chart"), STEPS[event.key], button);
  }

  #step(card, by, button) {
    const cards = this.#shown();
    const target = cards[cards.indexOf(card) + by];
    if (!target) return;
    this.#move(card, target, by > 0);
    button.focus(); // a card that moves loses it
    card.scrollIntoView({ block: "nearest" });
  }

  #remove(card) {
    const cards = this.#shown();
    const i = cards.indexOf(card);
    const next = cards[i + 1] ?? cards[i - 1];
    const title = titleOf(card);
    this.list.remove(card.id);
    setText(this.status, `${title} removed.`);
    (next?.querySelector("[data-remove]") ?? this.button).focus();
  }

  #move(card, target, isAfter) {
    this.list.move(card.id, target.id, isAfter);
    const cards = this.#shown();
    const place = `${cards.indexOf(card) + 1} of ${cards.length}`;
    setText(this.status, `${titleOf(card)}: chart ${place}.`);
  }

  // A drag begins anywhere between the buttons.
  #lift(event) {
    const tools = event.target.closest("[data-chart-order]");
    if (!tools || event.button !== 0 || event.target.closest("button")) return;
    event.preventDefault();
    tools.setPointerCapture(event.pointerId);
    this.#drag = { card: tools.closest(".chart"), target: null, isAfter: false };
    this.#drag.card.dataset.dragged = "";
    this.#scroll(this.#drag);
  }

  #carry({ clientX, clientY }) {
    if (!this.#drag) return;
    // The pointer may leave the window.
    const y = Math.min(Math.max(clientY, 0), window.innerHeight - 1);
    Object.assign(this.#drag, { x: clientX, y });
    this.#aim();
  }

  // As long as it is held near an edge of the window.
  #scroll(drag) {
    if (this.#drag !== drag) return;
    const by = (drag.y > window.innerHeight - EDGE) - (drag.y < EDGE);
    if (by) {
      window.scrollBy(0, by * SCROLLED);
      this.#aim();
    }
    requestAnimationFrame(() => this.#scroll(drag));
  }

  #aim() {
    const { card, x, y } = this.#drag;
    const found = document.elementFromPoint(x, y)?.closest(".chart");
    const isTarget = found && found !== card && found.parentElement === this.grid;
    this.#mark(isTarget ? found : null, isTarget && isBehind(found, x, y));
  }

  #mark(target, isAfter) {
    if (this.#drag.target) delete this.#drag.target.dataset.drop;
    if (target) {
      target.dataset.drop = isAfter ? "after" : "before";
      target.toggleAttribute("data-stacked", isStacked(target));
    }
    Object.assign(this.#drag, { target, isAfter });
  }

  #drop() {
    if (!this.#drag) return;
    const { card, target, isAfter } = this.#drag;
    this.#letGo();
    if (target) this.#move(card, target, isAfter);
  }

  #letGo() {
    if (!this.#drag) return;
    this.#mark(null, false);
    delete this.#drag.card.dataset.dragged;
    this.#drag = null;
  }
}

function titleOf(card) {
  return card.querySelector(".chart-title").firstChild.textContent.trim();
}

// Whether the cards stand below each other.
function isStacked(card) {
  return card.clientWidth > 0.6 * card.parentElement.clientWidth;
}

function isBehind(card, x, y) {
  const { left, top, width, height } = card.getBoundingClientRect();
  return isStacked(card) ? y > top + height / 2 : x > left + width / 2;
}
