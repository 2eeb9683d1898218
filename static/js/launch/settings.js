// The meaning of a setting's text, as in dashboard/runs/config/fields.py.

const NUMBERS = new Set(["whole", "number"]);

export function isSame(kind, text, other) {
  return text === other || (NUMBERS.has(kind) && isEqualNumber(text, other));
}

function isEqualNumber(text, other) {
  // Number("") is 0, but an empty setting is none.
  if (!text.trim() || !other.trim()) return text.trim() === other.trim();
  return Number(text) === Number(other);
}

export function showText(kind, text) {
  if (kind === "switch") return text ? "on" : "off";
  return text || "empty";
}

// The settings without effect, by path, and why: the first reason that holds.
export function findUnused(table, texts) {
  const found = new Map();
  for (const { path, when, reason } of table) {
    const holds = Object.entries(when).every(([other, values]) =>
      values.some(
        (value) =>
          texts.get(other)?.trim() === value ||
          isEqualNumber(texts.get(other) ?? "", value),
      ),
    );
    if (holds && !found.has(path)) found.set(path, reason);
  }
  return found;
}
