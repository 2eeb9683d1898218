// The trainer's warnings, from a run's events.

import { sig3 } from "./numbers.js";

// The latest of each kind, newest first, without superseded steps (past `lastStep`) and
// without codes in `known`, which alerts already show.
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
    facts.push(`value ${sig3(value)}, bound ${sig3(threshold)}`);
  if (count > 1) facts.push(`${count} times`);
  const prefix = step > 0 ? `Step ${step.toLocaleString("en-US")}: ` : "";
  return `${prefix}${message}${facts.length ? ` (${facts.join("; ")})` : ""}`;
}
