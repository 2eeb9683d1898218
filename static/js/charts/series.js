// From a run's metrics to the points of one line.

// An exponential moving average, as TensorBoard draws it: `weight` 0 … 1 is how much of
// the past is kept, and early values are not pulled towards 0.
export function smooth(values, weight) {
  if (weight <= 0) return values;
  let last = 0;
  let mass = 0;
  return values.map((value) => {
    last = last * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return last / mass;
  });
}

// The sum of metrics, each times its factor, at the steps where all of them have a value.
export function combine(get, terms, constant = 0) {
  const curves = terms.map(([metric]) => get(metric));
  if (!curves.length || curves.some((curve) => !curve?.steps.length))
    return { steps: [], values: [] };
  if (curves.length === 1 && terms[0][1] === 1 && constant === 0) return curves[0];
  const [first, ...others] = curves;
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

// Seconds in the unit that reads best over this span.
export function timeUnit(seconds) {
  if (seconds < 120) return { name: "seconds", length: 1 };
  if (seconds < 7_200) return { name: "minutes", length: 60 };
  if (seconds < 172_800) return { name: "hours", length: 3_600 };
  return { name: "days", length: 86_400 };
}
