// From a run's metrics to the points of one line.

// An exponential moving average as in TensorBoard: `weight` 0 … 1, debiased. Non-finite
// values are skipped; a constant line is returned unchanged, without rounding noise.
export function smooth(values, weight) {
  if (weight <= 0 || values.every((value) => value === values[0])) return values;
  let last = 0;
  let mass = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    last = last * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return last / mass;
  });
}

// As in dashboard/runs/charts/chart.py: Plotly finds no range for larger numbers.
export const LARGEST = 1e37;

export function clip(values) {
  if (values.every((value) => !(Math.abs(value) > LARGEST))) return values;
  return values.map((value) => Math.max(-LARGEST, Math.min(LARGEST, value)));
}

// The weighted sum of metrics, at the steps where all have a value.
export function combine(get, terms, constant = 0) {
  const curves = terms.map(([metric]) => get(metric));
  if (!curves.length || curves.some((curve) => !curve?.steps.length))
    return { steps: [], values: [] };
  if (curves.length === 1 && terms[0][1] === 1 && constant === 0) return curves[0];
  const [first, ...others] = curves.map(clipped);
  const cursors = others.map(() => 0);
  const steps = [];
  const values = [];
  first.steps.forEach((step, i) => {
    let sum = constant + first.values[i] * terms[0][1];
    const isComplete = others.every((other, k) => {
      while (other.steps[cursors[k]] < step) cursors[k] += 1;
      if (other.steps[cursors[k]] !== step) return false;
      sum += other.values[cursors[k]] * terms[k + 1][1];
      return true;
    });
    if (!isComplete) return;
    steps.push(step);
    values.push(sum);
  });
  return { steps, values };
}

export function clipped(curve) {
  const values = clip(curve.values);
  return values === curve.values ? curve : { ...curve, values };
}

// Stacked layers need the same steps.
export function alignSteps(curves) {
  const filled = curves.filter((curve) => curve.steps.length);
  if (filled.length < 2) return curves;
  const [first, ...others] = filled.map((curve) => new Set(curve.steps));
  const shared = new Set(
    [...first].filter((step) => others.every((steps) => steps.has(step))),
  );
  return curves.map(({ steps, values }) => ({
    steps: steps.filter((step) => shared.has(step)),
    values: values.filter((_, i) => shared.has(steps[i])),
  }));
}

// The range without outliers, as in TensorBoard: 5th to 95th percentile plus a margin.
// Undefined for a single value.
export function clipRange(values, { isLog = false } = {}) {
  const scaled = isLog ? values.filter((v) => v > 0).map(Math.log10) : values;
  const sorted = scaled.filter(Number.isFinite).sort((a, b) => a - b);
  const [low, high] = [quantile(sorted, 0.05), quantile(sorted, 0.95)];
  if (!(high > low)) return null;
  const room = (high - low) * 0.1;
  return [low - room, high + room];
}

function quantile(sorted, share) {
  const at = share * (sorted.length - 1);
  const below = Math.floor(at);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

// The unit of time for this span.
export function timeUnit(seconds) {
  if (seconds < 120) return { name: "seconds", length: 1 };
  if (seconds < 7_200) return { name: "minutes", length: 60 };
  if (seconds < 172_800) return { name: "hours", length: 3_600 };
  return { name: "days", length: 86_400 };
}
