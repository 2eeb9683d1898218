// Fewer points of the same shape: lowest, highest and last of each bucket of steps.
//
// Buckets begin at multiples of their width, a power of two, as they do on the server
// (dashboard/runs/charts/series.py). So downsampling here gives the same points as
// a new response, and no line jumps.

export const MAX_POINTS = 1_000;
const POINTS_PER_BUCKET = 3;

// The narrowest width whose buckets give `maxPoints` at most; 1: every step.
export function bucketWidth(first, last, maxPoints = MAX_POINTS) {
  let width = 1;
  while (last - first >= maxPoints && numPoints(first, last, width) > maxPoints)
    width *= 2;
  return width;
}

function numPoints(first, last, width) {
  return POINTS_PER_BUCKET * (Math.floor(last / width) - Math.floor(first / width) + 1);
}

export function thin({ steps, values }, width) {
  if (width <= 1 || steps.length === 0) return { steps, values };
  const kept = { steps: [], values: [] };
  let start = 0;
  for (let i = 1; i <= steps.length; i++) {
    if (i < steps.length && bucket(steps[i], width) === bucket(steps[start], width))
      continue;
    for (const k of keep(values, start, i)) {
      kept.steps.push(steps[k]);
      kept.values.push(values[k]);
    }
    start = i;
  }
  return kept;
}

function bucket(step, width) {
  return Math.floor(step / width);
}

// Indices to keep of start … end, ascending.
function keep(values, start, end) {
  let [low, high] = [start, start];
  for (let i = start + 1; i < end; i++) {
    if (values[i] < values[low]) low = i;
    if (values[i] > values[high]) high = i;
  }
  return [...new Set([low, high, end - 1])].sort((a, b) => a - b);
}

// The last of each bucket, since times are monotonic.
export function thinClock({ steps, times }, width) {
  const last = steps
    .map((_, i) => i)
    .filter((i) => bucket(steps[i], width) !== bucket(steps[i + 1] ?? Infinity, width));
  return { steps: last.map((i) => steps[i]), times: last.map((i) => times[i]) };
}

// The points from one step to another, plus `margin` neighbours on either side.
export function slice({ steps, values }, first, last, margin = 0) {
  let start = steps.findIndex((step) => step >= first);
  if (start < 0) start = steps.length;
  let end = steps.findLastIndex((step) => step <= last) + 1;
  start = Math.max(0, start - margin);
  end = Math.min(steps.length, Math.max(end, start) + margin);
  return { steps: steps.slice(start, end), values: values.slice(start, end) };
}
