// The alert bar of a run's page. The server lists alerts newest first.

// Neither acknowledged nor muted.
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

// Codes of trainer warnings that duplicate an alert.
export function alertCodes(alerts) {
  return new Set(alerts.map(({ code }) => code));
}
