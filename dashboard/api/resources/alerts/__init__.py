"""Alerts, the rules that fire them, and where they are sent."""

from __future__ import annotations

from dashboard.api.resources.alerts import channels, fired, rules

ROUTERS = [
    ("/alerts", fired.router),
    ("/alert-rules", rules.router),
    ("/alert-channels", channels.router),
]
