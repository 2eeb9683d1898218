// What a completion has that another has not, and the other way round, word by word.

const PATIENCE = 150; // ms: texts that share little take long to compare

const LEAST_SHARED = 0.25; // of the longer one's words; below, no two lines meet

// { pieces: [{ kind: "same" | "added" | "removed", text }], added, removed, shared }, in
// words; null: texts too long to be compared in a page's time.
export function compare(base, text, diff) {
  const found = diff.diffWordsWithSpace(base, text, { timeout: PATIENCE });
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

// Whether what they share is more than chance.
export function isAlike({ added, removed, shared }) {
  return shared >= LEAST_SHARED * (shared + Math.max(added, removed));
}

const countWords = (pieces, kind) =>
  pieces
    .filter((piece) => piece.kind === kind)
    .reduce((sum, { text }) => sum + (text.match(/\S+/g)?.length ?? 0), 0);

const inWords = (count) => `${count} ${count === 1 ? "word" : "words"}`;

export function describe(found, name) {
  if (!found) return `It and ${name} are too long, and too unlike, to be compared.`;
  const { pieces, added, removed, shared } = found;
  if (pieces.every(({ kind }) => kind === "same")) return `The same text as ${name}.`;
  if (!isAlike(found))
    return `It shares ${inWords(shared)} of ${shared + added} with ${name}: too few to show where they differ.`;
  if (!added && !removed) return `The words of ${name}, with other spaces.`;
  return `Beside ${name}: ${inWords(added)} of its own, ${inWords(removed)} not here.`;
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
