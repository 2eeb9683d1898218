// The tokens of completions: their colours and descriptions.

import { sig3 } from "../live/numbers.js";

const NUM_LEVELS = 4;
const NOT_TRAINED = "not trained";

// Where the colour begins, and whether it has two sides. A ratio's sides are in logs.
const SCALES = {
  logprob: { words: "log-prob, nats", of: (value) => -value, sign: -1 },
  entropy: { words: "entropy, nats", of: (value) => value },
  kl: { words: "KL from reference, nats", of: (value) => value },
  teacher: {
    words: "log-prob of the policy less the teacher's, nats",
    of: (value) => value,
    isTwoSided: true,
  },
  ratio: { words: "ratio", of: Math.log, isTwoSided: true, back: Math.exp },
  advantage: { words: "advantage", of: (value) => value, isTwoSided: true },
  coefficient: {
    words: "gradient coefficient",
    of: (value) => value,
    isTwoSided: true,
  },
  gap: {
    words: "log-prob of the trainer less the sampler's, nats",
    of: (value) => value,
    isTwoSided: true,
    least: 0.01, // or rounding would look like a large gap
  },
};

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// "+3" above the middle, -3 below it: each side has a colour, as bars of advantages have.
const onSide = (level) => (level > 0 ? `+${level}` : level);

// Up to the 99th of a hundred: one token of −30 nats would leave the others pale.
function reach(completions, name) {
  const { of, least = 0 } = SCALES[name];
  const sizes = completions
    .flatMap((completion) => completion[name] ?? [])
    .filter(isNumber)
    .map((value) => Math.abs(of(value)))
    .filter(Number.isFinite)
    .sort((a, b) => a - b);
  if (!sizes.length) return null;
  return Math.max(least, sizes[Math.ceil(0.99 * sizes.length) - 1]);
}

// null: no completion of the group has this value.
export function makeScale(completions, name) {
  if (name === "none") return { name, words: "", levelOf: () => 0, legend: [] };
  if (name === "clipped") return makeClipScale(completions);
  if (name === "weight") return makeWeightScale(completions);
  const end = reach(completions, name);
  if (end === null) return null;
  const {
    of,
    words,
    isTwoSided = false,
    back = (value) => value,
    sign = 1,
  } = SCALES[name];
  const levelOf = (value) => {
    if (!isNumber(value) || end === 0) return 0;
    const share = of(value) / end;
    const level = Math.min(NUM_LEVELS, Math.round(Math.abs(share) * NUM_LEVELS));
    return isTwoSided ? onSide(share < 0 ? -level : level) : level;
  };
  const low = isTwoSided ? -NUM_LEVELS : 0;
  const legend = [];
  for (let level = low; level <= NUM_LEVELS; level += isTwoSided ? 2 : 1) {
    const text = sig3(back((sign * level * end) / NUM_LEVELS));
    legend.push({ level: isTwoSided ? onSide(level) : level, text });
  }
  return { name, words, levelOf, legend };
}

const CLIPPED = {
  "-1": "clipped below",
  0: "not clipped",
  1: "clipped above",
  2: "dual-clipped",
};

function makeClipScale(completions) {
  if (!completions.some(({ clipped }) => clipped)) return null;
  const levelOf = (value) => onSide(value ? Math.sign(value) * NUM_LEVELS : 0);
  const legend = [-1, 1].map((value) => ({
    level: levelOf(value),
    text: CLIPPED[value],
  }));
  return { name: "clipped", words: "clipping", levelOf, legend };
}

function makeWeightScale(completions) {
  if (!completions.some(({ weight }) => weight)) return null;
  const levels = [
    [-NUM_LEVELS, "masked", (value) => value === 0],
    [-1, "weight below 1", (value) => value < 1 - 2e-3],
    [1, "weight above 1", (value) => value > 1 + 2e-3],
  ];
  const levelOf = (value) => {
    if (!isNumber(value)) return 0;
    return onSide(levels.find(([, , holds]) => holds(value))?.[0] ?? 0);
  };
  const legend = levels.map(([level, text]) => ({ level: onSide(level), text }));
  return { name: "weight", words: "correction", levelOf, legend };
}

// A token's text with visible whitespace.
export function show(piece) {
  return piece.replaceAll("\r", "␍").replaceAll("\t", "⇥\t").replaceAll("\n", "↵\n");
}

const VALUES = [
  ["sampling_logprob", "sampling log-prob", " nats"],
  ["teacher_logprob", "teacher log-prob", " nats"],
  ["teacher", "distance to teacher", " nats"],
  ["entropy", "entropy", " nats"],
  ["kl", "KL", " nats"],
  ["ratio", "ratio", ""],
  ["advantage", "advantage", ""],
  ["coefficient", "gradient coefficient", ""],
  ["gap", "sampler mismatch", " nats"],
  ["weight", "weight of the correction", ""],
];

// Bidirectional control characters would reorder the following words.
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

const quote = (piece) =>
  JSON.stringify(piece).replace(
    DIRECTIONS,
    (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

// Whether an environment or a tool wrote the token.
function isUntrained({ turns = [] }, at) {
  const [, isPolicy] = turns.find(([, , end]) => at < end) ?? [null, true];
  return !isPolicy;
}

// A run without a teacher has no log-probs of one.
export function addTeacher(completion) {
  const { logprob, teacher_logprob: teacher } = completion;
  completion.teacher = teacher?.map((value, at) =>
    isNumber(value) && isNumber(logprob?.[at]) ? logprob[at] - value : null,
  );
}

// All values of one token, in the order of the engine's formula.
export function describe(completion, at) {
  const { ids, pieces, logprob, clipped } = completion;
  const parts = [
    `Token ${at + 1} of ${ids.length}`,
    `id ${ids[at]}`,
    quote(pieces[at]),
  ];
  if (isNumber(logprob?.[at])) {
    const share = sig3(100 * Math.exp(logprob[at]));
    parts.push(`log-prob ${sig3(logprob[at])} nats (${share}%)`);
  }
  for (const [name, words, unit] of VALUES) {
    const value = completion[name]?.[at];
    if (isNumber(value)) parts.push(`${words} ${sig3(value)}${unit}`);
  }
  if (isUntrained(completion, at)) parts.push(NOT_TRAINED);
  else if (clipped) parts.push(CLIPPED[clipped[at]]);
  return parts.join(" · ");
}

export function makeTokens(completion, scale) {
  const { pieces, special } = completion;
  const values = completion[scale.name];
  return pieces.map((piece, at) => {
    const token = document.createElement("span");
    token.className = special[at] ? "token is-special" : "token";
    const isOutside = isUntrained(completion, at);
    if (isOutside) {
      token.classList.add("is-untrained");
      token.title = NOT_TRAINED;
    }
    const isBlank = isOutside && scale.name === "advantage";
    const level = isBlank ? 0 : scale.levelOf(values?.[at]);
    if (level) token.dataset.level = level;
    token.dataset.at = at;
    token.textContent = show(piece);
    return token;
  });
}
