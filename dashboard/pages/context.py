"""What the shell around every page needs to know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from dashboard.accounts.models import Membership, Team

# The first word of a URL name selects the navigation item.
SECTIONS = {
    "alert": "alerts",
    "alerts": "alerts",
    "run": "runs",
    "runs": "runs",
    "queue": "workers",
    "group": "runs",
    "groups": "runs",
    "completions": "runs",
    "dataset": "datasets",
    "datasets": "datasets",
    "prompts": "datasets",
    "reward": "rewards",
    "probe": "rewards",
    "probes": "rewards",
    "rescoring": "rewards",
    "rescorings": "rewards",
    "rewards": "rewards",
    "compare": "runs",
    "model": "models",
    "models": "models",
    "sweep": "runs",
    "report": "reports",
    "reports": "reports",
    "workers": "workers",
}


def _section(request: HttpRequest) -> str:
    match = request.resolver_match
    first_word = (match.url_name or "").split("_")[0] if match else ""
    return SECTIONS.get(first_word, "")


def _memberships(request: HttpRequest) -> list[Membership]:
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return []
    # By string: comments are of a higher layer. Counted in the same query.
    mentions = user.mentions.model.objects.filter(
        user=OuterRef("user"),
        seen_at=None,
        comment__group__run__team=OuterRef("team"),
        comment__group__run__deleted_at=None,
    )
    counted = mentions.order_by().values("user").annotate(n=Count("pk")).values("n")
    return list(
        Membership.objects.filter(user=user)
        .select_related("team")
        .annotate(num_mentions=Coalesce(Subquery(counted), 0))
        .order_by("team__name")
    )


def _team_of(memberships: Iterable[Membership], slug: str | None) -> Team | None:
    teams = [place.team for place in memberships]
    named = (team for team in teams if team.slug == slug)
    return next(named, next(iter(teams), None))


def shell(request: HttpRequest) -> dict[str, Any]:
    memberships = SimpleLazyObject(lambda: _memberships(request))
    match = request.resolver_match
    slug = match.kwargs.get("team") if match else None
    return {
        "nav": _section(request),
        "memberships": memberships,
        "mail_is_set_up": settings.MAIL_IS_SET_UP,
        "sign_in_providers": settings.SIGN_IN_PROVIDERS,
        "can_make_team": lambda: any(place.can_manage for place in memberships),
        "num_mentions": lambda: sum(place.num_mentions for place in memberships),
        # A page without a team of its own, such as a 404, shows the address's, or the
        # reader's first; what a view passes as team goes before this.
        "team": SimpleLazyObject(lambda: _team_of(memberships, slug)),
    }
