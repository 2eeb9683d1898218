// A metric's title, group and place in lists, by the registry that the page carries.

const element = globalThis.document?.getElementById("metric-titles");
const ROWS = element ? JSON.parse(element.textContent) : [];
const GROUPS = [...new Set(ROWS.map(([, , group]) => group))];
// An exact name goes before one with a place for names.
const METRICS = ROWS.map(([name, title, group, unit = ""], rank) => ({
  pattern: toPattern(name),
  title,
  group,
  unit,
  rank,
  isExact: !name.includes("<"),
})).toSorted((one, other) => other.isExact - one.isExact);
const OTHER = "Other metrics";
const MAIN_SET = "heldout";

// `reward/<rule>/mean` as a regular expression with a group for the rule.
function toPattern(name) {
  const escaped = name.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`^${escaped.replaceAll(/<(\w+)>/g, "(?<$1>[^/]+)")}$`);
}

// Each name once: sorting asks for the same ones again and again.
const known = new Map();

function find(name) {
  if (!known.has(name)) known.set(name, match(name));
  return known.get(name);
}

function match(name) {
  for (const metric of METRICS) {
    const found = metric.pattern.exec(name);
    if (found) return { ...metric, parts: found.groups ?? {} };
  }
  return null;
}

export function titleOf(name) {
  const metric = find(name);
  if (!metric) return name;
  const { parts } = metric;
  const title = metric.title.replaceAll(/<(\w+)>/g, (_, part) => parts[part]);
  const isOtherSet = "set" in parts && parts.set !== MAIN_SET;
  return isOtherSet ? `${parts.set}: ${title.replace(/^Held-out /, "")}` : title;
}

// A chart has the unit at its axis.
export function unitOf(name) {
  return find(name)?.unit ?? "";
}

export function titleWithoutUnit(name) {
  const unit = unitOf(name);
  return unit ? titleOf(name).replace(` (${unit})`, "") : titleOf(name);
}

export function groupOf(name) {
  const [family, ...rest] = name.split("/");
  return find(name)?.group ?? (rest.length ? family : OTHER);
}

function compare(one, other) {
  return one < other ? -1 : Number(one > other);
}

export function compareGroups(one, other) {
  const rank = (group) => GROUPS.indexOf(group) + 1 || GROUPS.length + 1;
  return rank(one) - rank(other) || compare(one, other);
}

// The registry's order, then other metrics by family and name.
export function compareMetrics(one, other) {
  const rank = (name) => find(name)?.rank ?? ROWS.length;
  return (
    rank(one) - rank(other) ||
    compareGroups(groupOf(one), groupOf(other)) ||
    compare(one, other)
  );
}

// The siblings are in order already; `keyOf` says which metric or group each shows.
export function insertInOrder(parent, child, keyOf, order) {
  const key = keyOf(child);
  const next = [...parent.children].find((other) => order(key, keyOf(other)) < 0);
  parent.insertBefore(child, next ?? null);
}
