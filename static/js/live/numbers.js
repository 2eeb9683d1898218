// Numbers as the templates write them: dashboard/accounts/templatetags/numbers.py.

const NOTHING = "–";

// Three significant digits, whole above.
export function sig3(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  if (value === 0) return "0";
  const sign = value < 0 ? "−" : "";
  if (size >= 999.5 && size < 1_000_000)
    return sign + Math.round(size).toLocaleString("en-US");
  if (size < 1e-4 || size >= 1_000_000) {
    const [mantissa, exponent] = size.toExponential(2).split("e");
    return `${sign}${Number(mantissa)}e${Number(exponent)}`;
  }
  return sign + String(Number(size.toPrecision(3)));
}

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB"];

// The unit for a number of bytes, and its size in bytes.
export function binaryUnit(bytes) {
  let power = 0;
  // 1,048,575 rounds to 1 MiB, not to 1,024 KiB.
  while (power < BINARY.length - 1 && Math.abs(bytes) >= 1024 ** (power + 1) * 0.9995)
    power += 1;
  return { unit: BINARY[power], factor: 1024 ** power };
}

export function size(bytes) {
  if (bytes === null || bytes === undefined || !Number.isFinite(bytes)) return NOTHING;
  const { unit, factor } = binaryUnit(bytes);
  const number = bytes / factor;
  const isWhole = factor === 1 || Math.abs(number) >= 999.5;
  const shown = isWhole
    ? Math.round(number).toLocaleString("en-US")
    : String(Number(number.toPrecision(3)));
  return `${shown} ${unit}`;
}

export function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds) || seconds < 0) return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${Number(seconds.toPrecision(3))} s`;
  const pad = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${pad(Math.round(seconds) % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${pad(minutes % 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// The bounds of a held-out metric's interval.
export function isBound(metric) {
  return /^eval\/.*\/(low|high)$/.test(metric);
}

const EDGES_OF_THE_REWARD = new Set(["reward/p10", "reward/p90"]);

// The metric in whose chart a metric is drawn: the other one of a band for its edges,
// else itself.
export function drawnWith(metric) {
  if (EDGES_OF_THE_REWARD.has(metric)) return "reward/mean";
  return isBound(metric) ? metric.slice(0, metric.lastIndexOf("/")) : metric;
}
