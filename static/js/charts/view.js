// View settings of charts: from the URL, else saved, else defaults.

const DEFAULTS = {
  smooth: "0.6",
  x: "step",
  log: "",
  clip: "",
  tails: "on",
  alerts: "on",
};
const X_AXES = ["step", "time", "tokens", "samples"];

// On for all charts or none, with exceptions: "all,kl-mean".
export class Choice {
  constructor(text = "") {
    const names = text.split(",").filter(Boolean);
    this.all = names[0] === "all";
    this.others = new Set(this.all ? names.slice(1) : names);
  }

  has(chart) {
    return this.all !== this.others.has(chart);
  }

  setAll(isOn) {
    this.all = isOn;
    this.others.clear();
  }

  toggle(chart) {
    if (!this.others.delete(chart)) this.others.add(chart);
  }

  toString() {
    return [...(this.all ? ["all"] : []), ...this.others].join(",");
  }
}

export class View {
  constructor({ kept = "", address = "" } = {}) {
    const query = new URLSearchParams(address);
    this.#read({ ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(kept)) });
    this.#read({ ...this.settings(), ...Object.fromEntries(query) });
    this.range = readRange(query.get("from"), query.get("to"));
  }

  #read({ smooth, x, log, clip, tails, alerts }) {
    const weight = Number(smooth);
    this.smoothing = weight >= 0 && weight < 1 ? weight : Number(DEFAULTS.smooth);
    this.x = X_AXES.includes(x) ? x : DEFAULTS.x;
    this.log = new Choice(log);
    this.clip = new Choice(clip);
    this.tails = tails !== "off";
    this.alerts = alerts !== "off";
  }

  reset() {
    this.#read(DEFAULTS);
    this.range = null;
  }

  // Saved for other runs, except the range of steps.
  settings() {
    return {
      smooth: String(this.smoothing),
      x: this.x,
      log: String(this.log),
      clip: String(this.clip),
      tails: this.tails ? "on" : "off",
      alerts: this.alerts ? "on" : "off",
    };
  }

  get isDefault() {
    const settings = this.settings();
    return Object.keys(DEFAULTS).every((name) => settings[name] === DEFAULTS[name]);
  }

  // What differs from the defaults, in a few words.
  describe() {
    const { range, x, smoothing } = this;
    return [
      range && `steps ${range.first} to ${range.last}`,
      x !== DEFAULTS.x && `by ${x}`,
      String(smoothing) !== DEFAULTS.smooth && `smoothing ${smoothing}`,
      this.log.all && "log axis",
      this.clip.all && "no outliers",
    ]
      .filter(Boolean)
      .join(", ");
  }

  // The URL of this view; other parameters stay.
  write(address, { isWhole = false } = {}) {
    const query = new URLSearchParams(address);
    for (const [name, value] of Object.entries(this.settings())) {
      // An address may say "" where a person's own settings say otherwise.
      const isKept = query.has(name) && (value || !query.get(name));
      const isSaid = value !== DEFAULTS[name] || isKept;
      if (isSaid || isWhole) query.set(name, value);
      else query.delete(name);
    }
    for (const [name, step] of [
      ["from", this.range?.first],
      ["to", this.range?.last],
    ]) {
      if (step === undefined) query.delete(name);
      else query.set(name, step);
    }
    // Commas need no escaping in a query.
    return query.toString().replaceAll("%2C", ",");
  }
}

function readRange(from, to) {
  if (!/^\d{1,9}$/.test(from ?? "") || !/^\d{1,9}$/.test(to ?? "")) return null;
  return makeRange(Number(from), Number(to));
}

// At least two steps wide, since one point shows no line.
export function makeRange(first, last) {
  const start = Math.max(0, Math.floor(Math.min(first, last)));
  return { first: start, last: Math.max(start + 1, Math.ceil(Math.max(first, last))) };
}
