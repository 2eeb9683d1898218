// Numbers as the templates write them: dashboard/accounts/templatetags/numbers.py.

const NOTHING = "–";

export function sig4(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1_000 && size < 1_000_000)
    return Math.round(value).toLocaleString("en-US");
  if (size < 1e-4 || size >= 1_000_000) {
    const [mantissa, exponent] = value.toExponential(3).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`;
  }
  return String(Number(value.toPrecision(4)));
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

// The ends of an interval stand beside the metric they belong to.
export function isBound(metric) {
  return /^eval\/.*\/(low|high)$/.test(metric);
}
