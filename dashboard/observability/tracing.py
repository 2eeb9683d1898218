"""Errors to Sentry, and spans of requests, tasks and runs' attempts to OpenTelemetry.

They bear what lines of the log bear, and no address, statement or text. Where neither
is set up nothing of either is loaded, and `span` does nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

from django.conf import settings

from dashboard.observability.logging import current_facts, process_name, redact

MAX_CHARS = 2_000
REQUEST_KEPT = frozenset({"method"})  # an address may hold a token
LACKING = (
    "%s is set, but %s is not installed, so nothing is sent. Run .venv/bin/pip "
    "install '.[observe]' in Cohort's folder, or unset it."
)

logger = logging.getLogger(__name__)
_tracers: list[Any] = []
_of_tasks: dict[str, ExitStack] = {}
HEADER = "traceparent"


def begin_reporting() -> None:
    """Called once per process; loads only what is configured."""
    process = process_name(sys.argv)
    if settings.SENTRY_DSN:
        try:
            report_faults(settings.SENTRY_DSN, process=process)
        except ImportError:
            logger.error(LACKING, "COHORT_SENTRY_DSN", "sentry-sdk")
    if settings.OTLP_ENDPOINT:
        try:
            send_spans(process=process)
        except ImportError:
            logger.error(LACKING, "OTEL_EXPORTER_OTLP_ENDPOINT", "opentelemetry")


def send_spans(*, process: str) -> None:
    """ImportError where OpenTelemetry is not installed. It reads OTEL_… itself."""
    from opentelemetry import trace  # noqa: PLC0415 - only where it is set up
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - as above
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above

    provider = TracerProvider(
        resource=Resource.create({"service.name": "cohort", "cohort.process": process})
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(_endpoint())))
    trace.set_tracer_provider(provider)
    _tracers[:] = [trace.get_tracer("cohort")]


def _endpoint() -> str | None:
    """Ours may be given as a file. None: OpenTelemetry reads one for spans alone."""
    if os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return None
    return f"{settings.OTLP_ENDPOINT.rstrip('/')}/v1/traces"


@contextmanager
def span(name: str) -> Iterator[Any]:
    """Open a span; None if nothing is exported. Of an error only the type is sent."""
    if not _tracers:
        yield None
        return
    with _tracers[0].start_as_current_span(
        name, record_exception=False, set_status_on_exception=False
    ) as span_:
        try:
            yield span_
        except BaseException as error:
            span_.set_attribute("error.type", type(error).__name__)
            raise
        finally:
            for fact, value in current_facts().items():
                span_.set_attribute(f"cohort.{fact}", value)


def name_span(open_span: Any, name: str, *, status: int) -> None:
    """Names the span of a request, whose route is known late."""
    if open_span is not None:
        open_span.update_name(name)
        open_span.set_attribute("http.route", name)
        open_span.set_attribute("http.response.status_code", status)


def carry_span(headers: MutableMapping[str, Any] | None = None, **_: Any) -> None:
    """Into a task that is sent: what it does is part of what we do."""
    if _tracers and headers is not None:
        from opentelemetry import propagate  # noqa: PLC0415 - as above

        propagate.inject(headers)


def begin_task_span(task_id: str, task: Any, **_: Any) -> None:
    if not _tracers:
        return
    from opentelemetry import context, propagate  # noqa: PLC0415 - as above

    carried = {HEADER: value} if (value := task.request.get(HEADER)) else {}
    stack = _of_tasks[task_id] = ExitStack()
    stack.callback(context.detach, context.attach(propagate.extract(carried)))
    stack.enter_context(span(task.name))


def end_task_span(task_id: str, **_: Any) -> None:
    if stack := _of_tasks.pop(task_id, None):
        stack.close()


def report_faults(dsn: str, *, process: str) -> None:
    """ImportError where sentry-sdk is not installed."""
    import sentry_sdk  # noqa: PLC0415 - only where it is set up

    sentry_sdk.init(
        dsn=dsn,
        send_default_pii=False,
        include_local_variables=False,  # they contain prompts
        include_source_context=False,
        max_request_body_size="never",
        max_breadcrumbs=0,  # they contain statements with values
        before_send=scrub,  # type: ignore[arg-type]  # its Event is a TypedDict
    )
    sentry_sdk.set_tag("process", process)


def scrub(event: dict[str, Any], _hint: dict[str, Any]) -> dict[str, Any]:
    """
    >>> scrub({"request": {"url": "/sign-in/4f1c/", "method": "GET"}}, {})
    {"request": {"method": "GET"}, "tags": {}}
    """
    facts = {name: str(value) for name, value in current_facts().items()}
    fields = {
        name: value
        for name, value in event.items()
        if name not in ("breadcrumbs", "extra", "user", "modules", "request")
    }
    request = event.get("request") or {}
    if request:
        fields["request"] = {k: v for k, v in request.items() if k in REQUEST_KEPT}
    if "user" in facts:
        fields["user"] = {"id": facts.pop("user")}
    fields["tags"] = {**dict(event.get("tags") or {}), **facts}
    quiet: dict[str, Any] = _quiet(fields)
    return quiet


def _quiet(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)[:MAX_CHARS]
    if isinstance(value, dict):
        return {name: _quiet(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_quiet(item) for item in value]
    return value
