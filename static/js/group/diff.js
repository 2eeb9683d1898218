// Word-by-word differences between two completions.

const TIMEOUT_MS = 150; // texts that share little take long to compare

const LEAST_SHARED = 0.25; // of the longer text's words

// { pieces: [{ kind: "same" | "added" | "removed", text }], added, removed, shared },
// counted in words; null: the comparison timed out.
export function compare(base, text, diff) {
  const found = diff.diffWordsWithSpace(base, text, { timeout: TIMEOUT_MS });
  if (!found) return null;
  const pieces = found.map(({ added, removed, value }) => ({
    kind: added ? "added" : removed ? "removed" : "same",
    text: value,
  }));
  const count = (kind) => countWords(pieces, kind);
  return {
    pieces,
    added: count("added"),
    removed: count("removed"),
    shared: count("same"),
  };
}

// Whether the texts share enough words to show differences.
export function isAlike({ added, removed, shared }) {
  return shared >= LEAST_SHARED * (shared + Math.max(added, removed));
}

const countWords = (pieces, kind) =>
  pieces
    .filter((piece) => piece.kind === kind)
    .reduce((sum, { text }) => sum + (text.match(/\S+/g)?.length ?? 0), 0);

const inWords = (count) => `${count} ${count === 1 ? "word" : "words"}`;

export function describe(found, name) {
  if (!found) return `Too long and too different to compare with ${name}.`;
  const { pieces, added, removed, shared } = found;
  if (pieces.every(({ kind }) => kind === "same")) return `Same text as ${name}.`;
  if (!isAlike(found))
    return `Shares ${inWords(shared)} of ${shared + added} with ${name}: too few to show differences.`;
  if (!added && !removed) return `Differs from ${name} only in whitespace.`;
  return `Compared with ${name}: ${inWords(added)} added, ${inWords(removed)} removed.`;
}

const TAGS = { added: "ins", removed: "del", same: "span" };

export function draw(element, pieces) {
  element.replaceChildren(
    ...pieces.map(({ kind, text }) => {
      const part = document.createElement(TAGS[kind]);
      part.textContent = text;
      return part;
    }),
  );
}
