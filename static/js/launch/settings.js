// What a setting's text means. dashboard/runs/config/fields.py says the same on
// the server.

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
export function findIdle(table, texts) {
  const found = new Map();
  for (const { path, when, reason } of table) {
    const holds = Object.entries(when).every(([asked, values]) =>
      values.some(
        (value) =>
          texts.get(asked)?.trim() === value ||
          isEqualNumber(texts.get(asked) ?? "", value),
      ),
    );
    if (holds && !found.has(path)) found.set(path, reason);
  }
  return found;
}
