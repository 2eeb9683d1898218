"""Faults to Sentry, without what people and models wrote and what lets somebody in."""

from __future__ import annotations

from typing import Any

from dashboard.logs.facts import current_facts
from dashboard.quiet_log import quieten

MAX_CHARS = 2_000
REQUEST_KEPT = frozenset({"method"})  # an address may hold a token


def report_faults(dsn: str, *, process: str) -> None:
    """ImportError where sentry-sdk is not installed."""
    import sentry_sdk  # noqa: PLC0415 - only where it is set up

    sentry_sdk.init(
        dsn=dsn,
        send_default_pii=False,
        include_local_variables=False,  # they hold prompts
        include_source_context=False,
        max_request_body_size="never",
        max_breadcrumbs=0,  # they hold statements with their values
        before_send=scrub,  # type: ignore[arg-type]  # its Event is a TypedDict
    )
    sentry_sdk.set_tag("process", process)


def scrub(event: dict[str, Any], _hint: dict[str, Any]) -> dict[str, Any]:
    """
    >>> scrub({"request": {"url": "/sign-in/4f1c/", "method": "GET"}}, {})
    {"request": {"method": "GET"}, "tags": {}}
    """
    facts = {name: str(value) for name, value in current_facts().items()}
    kept = {
        name: value
        for name, value in event.items()
        if name not in ("breadcrumbs", "extra", "user", "modules", "request")
    }
    request = event.get("request") or {}
    if request:
        kept["request"] = {k: v for k, v in request.items() if k in REQUEST_KEPT}
    if "user" in facts:
        kept["user"] = {"id": facts.pop("user")}
    kept["tags"] = {**dict(event.get("tags") or {}), **facts}
    found: dict[str, Any] = _quiet(kept)
    return found


def _quiet(value: Any) -> Any:
    if isinstance(value, str):
        return quieten(value)[:MAX_CHARS]
    if isinstance(value, dict):
        return {name: _quiet(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_quiet(one) for one in value]
    return value
