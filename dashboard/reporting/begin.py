"""Reports faults to Sentry and spans to OpenTelemetry, where settings name them."""

from __future__ import annotations

import logging
import sys

from django.conf import settings

from dashboard.logs.lines import process_name
from dashboard.reporting.faults import report_faults
from dashboard.reporting.spans import send_spans

logger = logging.getLogger(__name__)
LACKING = (
    "%s is set, but %s is not installed, so nothing is sent there. In Cohort's folder: "
    ".venv/bin/pip install '.[observe]'. Or unset it."
)


def begin_reporting() -> None:
    """Called once a process; nothing is loaded that is not asked for."""
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
