from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_membership
from dashboard.accounts.models import Team, User
from dashboard.datasets.models import DatasetRow
from dashboard.rewards.forms import TryForm
from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.workbench import (
    MAX_SECONDS,
    Bench,
    asks_models,
    pick_rows,
    try_recipe,
    warn_unscorable,
)
from trainer.rewards.sandbox.pool import asking_for
from trainer.rewards.spec import Recipe


@require_POST
def reward_try(request: HttpRequest, team: str) -> HttpResponse:
    """Scores with what stands in the form; nothing is stored."""
    assert isinstance(request.user, User)
    membership = get_membership(request.user, team)
    draft = RecipeDraft.posted(request.POST)
    draft.validate()
    context = {"team": membership.team, "draft": draft}
    if request.POST.get("action") == "warn":
        rows = _rows(TryForm(membership.team, request.POST))
        context |= {
            "try_warnings": _warnings(membership.team, draft.recipe, rows),
            "num_rows": len(rows),
        }
        return render(request, "rewards/try_warnings.html", context)
    context |= workbench_context(
        request, membership.team, draft, may_ask=membership.can_write
    )
    return render(request, "rewards/workbench.html", context)


def workbench_context(
    request: HttpRequest, team: Team, draft: RecipeDraft, *, may_ask: bool
) -> dict[str, Any]:
    """`may_ask`: whether models may be asked, which costs the server's owner money."""
    posted = request.POST if "try-offset" in request.POST else None
    form = TryForm(team, posted)
    rows = _rows(form)
    texts = {row.position: _typed(request, row) for row in rows}
    recipe = draft.recipe
    is_refused = recipe is not None and not may_ask and asks_models(recipe)
    if is_refused:
        recipe = None
    with asking_for(f"team {team.pk}"):
        benches = (
            try_recipe(recipe, rows, texts)
            if recipe
            else [Bench(row, texts[row.position], [], []) for row in rows]
        )
    return {
        "try_form": form,
        "try_rule_names": [rule.name for rule in recipe.rules] if recipe else [],
        "benches": benches,
        "try_warnings": _warnings(team, recipe, rows),
        "try_is_refused": is_refused,
        "max_seconds": MAX_SECONDS,
    }


def _warnings(
    team: Team, recipe: Recipe | None, rows: list[DatasetRow]
) -> dict[str, str]:
    """Viewers see them too: they cost no call to a judge."""
    if recipe is None:
        return {}
    with asking_for(f"team {team.pk}"):
        return warn_unscorable(recipe, rows)


def _rows(form: TryForm) -> list[DatasetRow]:
    if form.newest is None or (form.is_bound and not form.is_valid()):
        return []
    chosen = form.cleaned_data if form.is_bound else {}
    return pick_rows(
        chosen.get("version") or form.newest,
        offset=chosen.get("offset") or 0,
        seed=chosen.get("seed"),
    )


def _typed(request: HttpRequest, row: DatasetRow) -> str:
    return request.POST.get(f"completion-{row.position}", "")
