// The text of a run's alerts, which the server lists newest first.

// Those that are neither acknowledged nor muted.
export function listFiring(alerts) {
  return alerts.filter(({ state, is_muted }) => state === "firing" && !is_muted);
}

export function countOpen(alerts) {
  return alerts.filter(({ state }) => ["firing", "acknowledged"].includes(state))
    .length;
}

export function describeFiring(alerts) {
  const firing = listFiring(alerts);
  const [newest] = firing;
  return {
    count: `${firing.length} ${firing.length === 1 ? "alert" : "alerts"}`,
    newest: newest ? `${newest.name}, step ${newest.step.toLocaleString("en-US")}` : "",
    isShown: firing.length > 0,
  };
}

// Codes of the trainer's warnings that duplicate an alert.
export function alertCodes(alerts) {
  return new Set(alerts.map(({ code }) => code));
}
