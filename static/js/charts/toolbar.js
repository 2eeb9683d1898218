// The controls above a run's charts, saved in the URL and for the user.

import { missingAxis } from "./axis.js";
import { showChoices } from "./actions.js";
import { makeRange } from "./view.js";

const SAVE_AFTER = 800; // ms: a slider moves through many values

export class Toolbar {
  #timer = null;

  constructor({ form, root, view, store, onChange }) {
    Object.assign(this, { form, root, view, store, onChange });
    this.parts = form.elements;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("keydown", ({ key, target }) => {
      if (key === "Enter" && isEnd(target)) this.#takeRange({ isEntered: true });
    });
    form.addEventListener("input", (event) => this.#take(event.target));
    form.addEventListener("change", ({ target }) => {
      if (isEnd(target)) this.#takeRange({ isEntered: false });
    });
    form
      .querySelector("[data-zoom-reset]")
      .addEventListener("click", () => this.zoom(null));
    form.querySelector("[data-view-reset]").addEventListener("click", () => {
      view.reset();
      this.changed();
    });
    this.show();
    if (location.search || !view.isDefault) this.#write();
  }

  zoom(range) {
    this.view.range = range;
    this.changed({ isKept: false });
  }

  // A setting has changed, here or on a chart.
  changed({ isKept = true } = {}) {
    this.show();
    this.#write();
    if (isKept) this.#keep();
    this.onChange();
  }

  show() {
    const { parts, view, form } = this;
    parts.smooth.value = view.smoothing;
    form.querySelector("[data-smoothing-value]").textContent = view.smoothing;
    parts.x.value = view.x;
    parts.log.checked = view.log.all;
    parts.clip.checked = view.clip.all;
    parts.tails.checked = view.tails;
    parts.alerts.checked = view.alerts;
    parts.from.value = view.range?.first ?? "";
    parts.to.value = view.range?.last ?? "";
    form.querySelector("[data-zoom-reset]").hidden = !view.range;
    form.querySelector("[data-view-active]").textContent = view.describe();
    form.querySelector("[data-view-reset]").disabled = view.isDefault;
    const isNoted = [view.log, view.clip].some((one) => one.all || one.others.size);
    this.root.classList.toggle("is-noted", isNoted);
    showChoices(this.root, view);
    this.showRun();
  }

  // Options that depend on the run: its axes, and superseded steps.
  showRun() {
    const { form, store } = this;
    for (const option of this.parts.x.options) {
      const reason = missingAxis(store, option.value);
      option.disabled = reason !== "";
      const text = reason ? `${option.dataset.name} (${reason})` : option.dataset.name;
      if (option.textContent !== text) option.textContent = text;
    }
    form.querySelector("[data-tails]").hidden = store.tails.length === 0;
  }

  #take({ name, value, checked }) {
    const { view } = this;
    if (name === "smooth") view.smoothing = Number(value);
    else if (name === "x") view.x = value;
    else if (name === "log" || name === "clip") view[name].setAll(checked);
    else if (name === "tails" || name === "alerts") view[name] = checked;
    else return;
    this.changed();
  }

  // After both ends are entered, or one end and Enter; not with each digit.
  #takeRange({ isEntered }) {
    const [from, to] = [this.parts.from.value, this.parts.to.value];
    if (!from && !to) this.zoom(null);
    else if ((from && to) || isEntered)
      this.zoom(makeRange(Number(from || 0), Number(to || this.store.lastStep)));
  }

  #write() {
    const url = new URL(location.href);
    url.search = this.view.write(location.search);
    history.replaceState(history.state, "", url);
  }

  #keep() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#send(), SAVE_AFTER);
  }

  async #send() {
    const { form, view } = this;
    const body = new URLSearchParams(view.isDefault ? {} : view.settings());
    const headers = { "X-CSRFToken": this.parts.csrfmiddlewaretoken.value };
    const answer = await fetch(form.dataset.keep, {
      method: "POST",
      headers,
      body,
      keepalive: true,
    }).catch(() => null);
    // The settings are in the URL anyway.
    const status = form.querySelector("[data-keep-status]");
    status.textContent = answer?.ok ? "" : "Failed to save these settings.";
  }
}

function isEnd({ name }) {
  return name === "from" || name === "to";
}
