"""Alerts, the rules that fire them, and where they are sent."""

from __future__ import annotations

from dashboard.api.resources.alerts import channels, deliveries, fired, rules

ROUTERS = [
    ("/alerts", fired.router),
    ("/runs", fired.of_runs),
    ("/deliveries", deliveries.router),
    ("/alert-rules", rules.router),
    ("/alert-channels", channels.router),
]
