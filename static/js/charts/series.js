// From a run's metrics to the points of one line.

// An exponential moving average, as TensorBoard draws it: `weight` 0 … 1 is how much of
// the past is kept, and early values are not pulled towards 0. What is no number stays
// as it is and does not count; a line that never moves is not touched, so that it does
// not waver in its last digits.
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

// As dashboard/runs/charts/chart.py: of larger numbers Plotly finds no range.
export const LARGEST = 1e37;

export function clip(values) {
  if (values.every((value) => !(Math.abs(value) > LARGEST))) return values;
  return values.map((value) => Math.max(-LARGEST, Math.min(LARGEST, value)));
}

// The sum of metrics, each times its factor, at the steps where all of them have a value.
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

// Layers of a stack stand on one another, so they need the same steps.
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

// Where most values lie: from the 5th to the 95th of a hundred, and a little more, as
// TensorBoard scales without outliers. Nothing where that would be a single value.
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

// Seconds in the unit that reads best over this span.
export function timeUnit(seconds) {
  if (seconds < 120) return { name: "seconds", length: 1 };
  if (seconds < 7_200) return { name: "minutes", length: 60 };
  if (seconds < 172_800) return { name: "hours", length: 3_600 };
  return { name: "days", length: 86_400 };
}
