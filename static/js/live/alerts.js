// What a run's page says of its alerts, as the server lists them: the newest first.

// Those that nobody looks after yet.
export function listFiring(alerts) {
  return alerts.filter(({ state, is_muted }) => state === "firing" && !is_muted);
}

export function describeFiring(alerts, hasEnded) {
  const firing = listFiring(alerts);
  const [newest] = firing;
  return {
    count: `${firing.length} ${firing.length === 1 ? "alert" : "alerts"} ${hasEnded ? "open at its end" : "firing"}`,
    newest: newest ? `${newest.name}, step ${newest.step.toLocaleString("en-US")}` : "",
    isShown: firing.length > 0,
  };
}

// Codes of the trainer's warnings that say the same as an alert.
export function alertCodes(alerts) {
  return new Set(alerts.map(({ code }) => code));
}
