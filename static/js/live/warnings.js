// What the trainer warned of, out of a run's events.

import { sig4 } from "./numbers.js";

// Each kind once, as it was last said, the newest first. What a resumed run has gone
// back before (past `lastStep`) is not said any more: it may not come again. Nor is
// what an alert says already: the codes in `known`.
export function listWarnings(events, lastStep, known = new Set()) {
  const found = new Map();
  for (const { type, step, body } of events) {
    if (type !== "warned" || step > lastStep || known.has(body.code)) continue;
    const count = (found.get(body.code)?.count ?? 0) + 1;
    found.delete(body.code);
    found.set(body.code, { ...body, step, count });
  }
  return [...found.values()].reverse();
}

export function describeWarning({ message, value, threshold, step, count }) {
  const facts = [];
  if (value !== null && threshold !== null)
    facts.push(`value ${sig4(value)}, bound ${sig4(threshold)}`);
  if (count > 1) facts.push(`${count} times`);
  const place = step > 0 ? `Step ${step.toLocaleString("en-US")}: ` : "";
  return `${place}${message}${facts.length ? ` (${facts.join("; ")})` : ""}`;
}
