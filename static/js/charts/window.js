// The points of a run's curves that a chart needs: downsampled for the screen, and only
// around the visible range.

import { bucketWidth, slice, thin } from "../live/thinning.js";
import { widen } from "./closeups.js";

export const ALL = { first: 0, last: Number.POSITIVE_INFINITY };

// A reader of curves: metric -> { steps, values } or undefined.
export function openWindow({ store, closeups, range }) {
  const wide = range ? widen(range) : ALL;
  const width = widthOf(store.clock, range ?? ALL);
  return (metric) => {
    const curve = closeups ? closeups.curve(metric, range) : store.get(metric);
    return curve && thin(slice(curve, wide.first, wide.last), width);
  };
}

function widthOf({ steps }, { first, last }) {
  const from = Math.max(first, steps[0] ?? 0);
  return bucketWidth(from, Math.max(from, Math.min(last, steps.at(-1) ?? 0)));
}
