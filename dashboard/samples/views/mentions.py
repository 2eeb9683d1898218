from __future__ import annotations

from django.core.paginator import Page, Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_membership_for
from dashboard.samples.annotations import mark_seen, mentions_of
from dashboard.samples.forms import MentionForm
from dashboard.samples.models import Mention

MENTIONS_PER_PAGE = 50


@require_safe
def mentions(request: HttpRequest, team: str) -> HttpResponse:
    """The reader's own; what this page has shown is new no more."""
    membership = get_membership_for(request, team)
    found = mentions_of(membership.user, membership.team)
    number = MentionForm.read(request.GET).value("page")
    page: Page[Mention] = Paginator(found, MENTIONS_PER_PAGE).get_page(number)
    context = {"team": membership.team, "page": page, "mentions": list(page)}
    answer = render(request, "samples/mentions.html", context)
    if request.method == "GET":
        mark_seen(membership.user, [mention.pk for mention in page])
    return answer
