// Metrics that match a search: all of its words, or a regular expression.

export function makeMatcher(text) {
  const query = text.trim();
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const hasWords = (name) => words.every((word) => name.toLowerCase().includes(word));
  if (!/[\\^$.*+?()[\]{}|]/.test(query)) return { matches: hasWords, error: "" };
  try {
    const pattern = new RegExp(query, "i");
    return { matches: (name) => pattern.test(name) || hasWords(name), error: "" };
  } catch {
    // Half typed, most likely.
    return {
      matches: hasWords,
      error: "Incomplete regular expression; searching for words instead.",
    };
  }
}
