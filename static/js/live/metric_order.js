// Metrics are listed by family (kl of kl/mean), then by name, as on the server.

export function family(metric) {
  return metric.split("/")[0];
}

export function isBefore(one, other) {
  const [left, right] = [family(one), family(other)];
  return left === right ? one < other : left < right;
}

// The siblings are in order already; `metricOf` says which metric, or family, each shows.
export function insertInOrder(parent, child, metricOf) {
  const metric = metricOf(child);
  const next = [...parent.children].find((other) => isBefore(metric, metricOf(other)));
  parent.insertBefore(child, next ?? null);
}
