// A line's text with what matched in it.

export function marked(text, spans) {
  return pieces(text, spans).map(([piece, isMatch]) => {
    if (!isMatch) return document.createTextNode(piece);
    const mark = document.createElement("mark");
    mark.textContent = piece;
    return mark;
  });
}

// The text in pieces: [piece, whether it matched].
export function pieces(text, spans) {
  const found = [];
  let at = 0;
  for (const [start, end] of spans) {
    if (start > at) found.push([text.slice(at, start), false]);
    if (end > start) found.push([text.slice(start, end), true]);
    at = end;
  }
  if (at < text.length) found.push([text.slice(at), false]);
  return found;
}
