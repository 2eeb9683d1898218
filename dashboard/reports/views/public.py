"""A report behind its public link: what it shows, and no way into the team."""

from __future__ import annotations

import time
from functools import lru_cache
from threading import BoundedSemaphore

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from dashboard.reports import style
from dashboard.reports.alone import render_alone
from dashboard.reports.hosts import own_hosts
from dashboard.reports.models import Report
from dashboard.reports.queries import find_public_report

SECONDS = 5  # that an answer is good for: a link may be read by many at once
# A link known to strangers takes two cores' worth of the server at most.
_turns = BoundedSemaphore(2)


@login_not_required
@never_cache
@require_safe
def public_report(request: HttpRequest, token: str) -> HttpResponse:
    """404 from the moment the link is revoked: no answer of it is kept."""
    report = find_public_report(token)
    question = _Question(report, frozenset(own_hosts(request)))
    with _turns:
        response = HttpResponse(_answer_once(question))
    response["Content-Security-Policy"] = f"{style.policy()}; frame-ancestors 'none'"
    response["Referrer-Policy"] = "no-referrer"
    response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    return response


class _Question:
    """Equal for all who ask within some seconds; asked once the link was found."""

    def __init__(self, report: Report, hosts: frozenset[str]) -> None:
        self.report, self.hosts = report, hosts
        moment = time.monotonic() // SECONDS
        self.key = (report.pk, report.number, report.public_sha256, hosts, moment)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.key == other.key


@lru_cache(maxsize=16)
def _answer_once(question: _Question) -> str:
    return render_alone(question.report, without_hosts=question.hosts)
