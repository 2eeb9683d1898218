// A fork's charts start with its parents' curves up to the fork point, in grey.

import { makeParentAxis, TOTALS } from "./axis.js";
import { asLabel, hoverOf } from "./labels.js";
import { clip, smooth } from "./series.js";
import { isPlainLine } from "./tails.js";

const WIDTH = 1.5;
const OPACITY = 0.75;
const MAX_METRICS = 200; // the server's maximum
const RETRY_AFTER = 5_000; // ms after a failed request

// Metrics of a fork's parents, each up to the fork point.
export class Parents {
  #requested = new Set(); // metrics
  #lines = []; // { name, step, fork, curves, clock }, oldest run first

  constructor({ ancestors, env, onLoaded }) {
    this.ancestors = ancestors;
    this.env = env;
    this.onLoaded = onLoaded;
  }

  get lines() {
    return this.#lines;
  }

  // Requests new metrics. Failed requests are retried after a while, and never if a
  // parent was deleted.
  async load(metrics) {
    const isNew = (name) => !this.#requested.has(name);
    const wanted = [...new Set(metrics)].filter(isNew);
    // Their token and completion counts are x axes of every chart.
    if (wanted.length) wanted.push(...Object.values(TOTALS).filter(isNew));
    if (!wanted.length || !this.ancestors.length) return;
    for (const name of wanted) this.#requested.add(name);
    for (let i = 0; i < wanted.length; i += MAX_METRICS)
      await this.#loadSome(wanted.slice(i, i + MAX_METRICS));
    this.onLoaded();
  }

  async #loadSome(metrics) {
    const requests = this.ancestors.map(
      async ({ name, step, fork = null, curves: address }) => {
        const query = new URLSearchParams({ metrics: metrics.join(), last_step: step });
        const answer = await this.env.fetch(`${address}?${query}`).catch(() => null);
        if (!answer || answer.status >= 500) return this.#retry(metrics);
        if (!answer.ok) return;
        const { curves, clock } = await answer.json();
        const line = this.#lines.find(
          (known) => known.step === step && known.name === name,
        );
        const found = Object.entries(curves);
        if (line) for (const [metric, curve] of found) line.curves.set(metric, curve);
        else this.#lines.push({ name, step, fork, curves: new Map(found), clock });
      },
    );
    await Promise.all(requests);
    this.#lines.sort((a, b) => a.step - b.step);
  }

  #retry(metrics) {
    this.env.setTimeout(() => {
      for (const name of metrics) this.#requested.delete(name);
      this.onLoaded(); // redrawing requests them again
    }, RETRY_AFTER);
  }
}

// { parent, axis } of each parent that has this axis.
export function placeParents(parents, { view, store, last }) {
  const lines = parents?.lines ?? [];
  return lines
    .map((parent) => ({
      parent,
      axis: makeParentAxis(view.x, store, { last, parent }),
    }))
    .filter(({ axis }) => axis);
}

// For each plain line of a chart, the parents' part before it.
export function drawParents(traces, { placed, view, read, range }) {
  return placed.flatMap(({ parent, axis }) => {
    const drawn = traces.filter(isPlainLine).flatMap((trace) => {
      const curve = parent.curves.get(trace.meta.terms[0][0]);
      return curve?.steps.length
        ? [drawParent(trace, curve, { parent, axis, view, read, range })]
        : [];
    });
    return drawn.map((trace, i) => ({ ...trace, showlegend: i === 0 }));
  });
}

function drawParent(trace, { steps, values }, { parent, axis, view, read, range }) {
  const weight = trace.meta.smooth ? view.smoothing : 0;
  const color = read("--cohort-quiet");
  const isNear = (step) => !range || (step >= range.first && step <= range.last);
  const near = steps.map((_, i) => i).filter((i) => isNear(steps[i]));
  const smoothed = smooth(clip(values), weight);
  const raw = near.map((i) => values[i]);
  const name = asLabel(parent.name);
  return {
    type: "scatter",
    mode: steps.length === 1 ? "markers" : "lines",
    name: `${name}, to step ${parent.step.toLocaleString("en-US")}`,
    x: near.map((i) => axis.position(steps[i])),
    customdata: near.map((i) => steps[i]),
    y: near.map((i) => smoothed[i]),
    line: { color, width: WIDTH, dash: "dot" },
    marker: { color, size: 5 },
    opacity: OPACITY,
    legendgroup: `parent-${parent.step}`,
    ...hoverOf(
      { hovertemplate: `%{y:.3~g} (${name})<extra>${trace.name}</extra>` },
      { raw, weight, read },
    ),
    meta: {
      raw,
      weight,
      of: trace.meta.full ?? trace.name,
      isParent: true,
    },
  };
}
