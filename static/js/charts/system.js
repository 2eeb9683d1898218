// From samples of a machine to the lines of its charts.

// What the charts hold: the columns of the server's answers, one after another.
export function join(known, newer) {
  const names = new Set([...Object.keys(known.values), ...Object.keys(newer.values)]);
  const empty = (answer) => answer.time.map(() => null);
  const values = [...names].map((name) => [
    name,
    [...(known.values[name] ?? empty(known)), ...(newer.values[name] ?? empty(newer))],
  ]);
  return {
    epoch: [...known.epoch, ...newer.epoch],
    time: [...known.time, ...newer.time],
    step: [...known.step, ...newer.step],
    values: Object.fromEntries(values),
  };
}

// A metric's points; a null parts the lives of a trainer, and a long silence in one.
export function line(samples, metric, axis) {
  const x = [];
  const y = [];
  const values = samples.values[metric] ?? [];
  const silence = 5 * typicalGap(samples.time);
  values.forEach((value, i) => {
    const isNew = i > 0 && samples.epoch[i] !== samples.epoch[i - 1];
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

// 1.24e9 -> "1.24 GB"
export function withUnit(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "%") return `${value.toFixed(1)} %`;
  const sizes = ["", "k", "M", "G", "T"];
  let size = 0;
  let left = value;
  while (Math.abs(left) >= 999.5 && size < sizes.length - 1) {
    left /= 1000;
    size += 1;
  }
  return `${Number(left.toPrecision(3))} ${sizes[size]}${unit}`;
}
