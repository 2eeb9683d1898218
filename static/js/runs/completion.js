// The part of a query that is being typed, and its suggestions. No DOM.

const KEY = /^(-?\(*)((?:"(?:[^"\\]|\\.)*"|[^\s()":=<>!~])*)$/;
const PAIR =
  /^-?\(*((?:"(?:[^"\\]|\\.)*"|[^\s()":=<>!~])+?)\s*(!=|!~|<=|>=|[:=<>~])\s*(.*)$/s;
const MAX_OFFERED = 12;

/** Where the term around the caret begins: after a space outside quotes. */
export function termStart(text, caret) {
  let start = 0;
  let isQuoted = false;
  for (let at = 0; at < caret; at += 1) {
    const letter = text[at];
    if (letter === '"' && text[at - 1] !== "\\") isQuoted = !isQuoted;
    if (!isQuoted && /\s/.test(letter) && !isInsidePair(text, start, at)) {
      start = at + 1;
    }
  }
  return start;
}

// `lr < 1` is one term, the spaces around its operator included.
function isInsidePair(text, start, at) {
  const before = text.slice(start, at).trimEnd();
  const after = text.slice(at).trimStart();
  if (/(?:[:=<>~])$/.test(before)) return true;
  return before !== "" && /^(?:!=|!~|<=|>=|[:=<>~])/.test(after);
}

/**
 * {kind: "key" | "value", start, end, key, typed}: `start` to `end` is what a choice
 * replaces. Null if there are no suggestions.
 */
export function read(text, caret) {
  const start = termStart(text, caret);
  const term = text.slice(start, caret);
  const pair = PAIR.exec(term);
  if (pair) {
    const list = pair[3];
    const typed = list.slice(list.lastIndexOf(",") + 1);
    return {
      kind: "value",
      key: pair[1].replaceAll('"', ""),
      typed: typed.replaceAll('"', ""),
      start: caret - typed.length,
      end: caret,
    };
  }
  const key = KEY.exec(term);
  if (!key) return null;
  return {
    kind: "key",
    key: "",
    typed: key[2],
    start: start + key[1].length,
    end: caret,
  };
}

/** The keys that contain the typed text, those that begin with it first. */
export function offerKeys(known, typed) {
  const all = [
    ...known.keys.map(({ key, about }) => ({ text: key, about })),
    ...known.metrics.flatMap(({ metric, stats }) =>
      stats.map((stat) => ({ text: `${quoteKey(metric)}.${stat}`, about: "metric" })),
    ),
    ...known.settings.map(({ key }) => ({ text: key, about: "setting" })),
  ];
  return rank(all, typed);
}

export function offerValues(values, typed) {
  return rank(
    values.map((text) => ({ text, about: "" })),
    typed,
  );
}

function rank(all, typed) {
  const wanted = typed.toLowerCase();
  const plain = ({ text }) => text.toLowerCase().replaceAll('"', "");
  const begins = all.filter((one) => plain(one).startsWith(wanted));
  const holds = all.filter(
    (one) => !plain(one).startsWith(wanted) && plain(one).includes(wanted),
  );
  return [...begins, ...holds].slice(0, MAX_OFFERED);
}

function quoteKey(name) {
  return /^[^\s()":=<>!~,-][^\s()":=<>!~,]*$/.test(name) ? name : `"${name}"`;
}

/** The text with the typed part replaced by a choice, and the new caret position. */
export function choose(text, place, chosen, flags) {
  const isFlag = place.kind === "key" && flags.includes(chosen);
  const wantsOperator = place.kind === "key" && !isFlag;
  const isNumber =
    chosen.startsWith("config.") || /\.(last|best|min|max|mean)$/.test(chosen);
  const behind = wantsOperator ? (isNumber ? " " : ":") : " ";
  const rest = text.slice(place.end).replace(/^ /, "");
  const before = `${text.slice(0, place.start)}${chosen}${behind}`;
  return { text: before + rest, caret: before.length };
}
