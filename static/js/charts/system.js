// From samples of a machine to lines of charts.

import { binaryUnit, size } from "../live/numbers.js";

// The charts' data: columns of the server's responses, concatenated.
export function join(known, newer) {
  const names = new Set([...Object.keys(known.values), ...Object.keys(newer.values)]);
  const empty = (answer) => answer.time.map(() => null);
  const values = [...names].map((name) => [
    name,
    [...(known.values[name] ?? empty(known)), ...(newer.values[name] ?? empty(newer))],
  ]);
  return {
    attempt: [...known.attempt, ...newer.attempt],
    time: [...known.time, ...newer.time],
    step: [...known.step, ...newer.step],
    values: Object.fromEntries(values),
  };
}

// A metric's points, with a null between attempts and at long gaps.
export function line(samples, metric, axis) {
  const x = [];
  const y = [];
  const values = samples.values[metric] ?? [];
  const silence = 5 * typicalGap(samples.time);
  values.forEach((value, i) => {
    const isNew = i > 0 && samples.attempt[i] !== samples.attempt[i - 1];
    const isLate = i > 0 && samples.time[i] - samples.time[i - 1] > silence;
    if (isNew || isLate) {
      x.push(place(samples, i, axis));
      y.push(null);
    }
    x.push(place(samples, i, axis));
    y.push(value);
  });
  return { x, y };
}

function place(samples, i, axis) {
  if (axis === "step") return samples.step[i];
  return new Date(samples.time[i] * 1000).toISOString();
}

function typicalGap(times) {
  const gaps = times.slice(1).map((time, i) => time - times[i]);
  gaps.sort((a, b) => a - b);
  return Math.max(10, gaps[Math.floor(gaps.length / 2)] ?? 0);
}

// `gpu_use` stands for a line for each GPU.
export function metricsOf(samples, metric) {
  if (!metric.startsWith("gpu_")) return [metric];
  return Object.keys(samples.values).filter((name) => name.startsWith(`${metric}/`));
}

// 1.33e9 -> "1.24 GiB"
export function withUnit(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "%") return `${value.toFixed(1)}%`;
  return unit === "B/s" ? `${size(value)}/s` : size(value);
}

// Divisor and unit of an axis, since Plotly has no binary prefixes.
export function scaleOf(lists, unit) {
  if (unit === "%") return { factor: 1, suffix: "%" };
  const most = lists.reduce((top, list) => Math.max(top, ...(list ?? [])), 0);
  const { unit: shown, factor } = binaryUnit(most);
  return { factor, suffix: ` ${shown}${unit.slice(1)}` };
}
