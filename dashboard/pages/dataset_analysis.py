"""Analyses of a dataset version: statistics, changes, leaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from dashboard.accounts.access import (
    get_membership,
    get_membership_for,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.datasets.analysis import differences, leaks
from dashboard.datasets.analysis.differences import find_difference, read_changes
from dashboard.datasets.analysis.figures import (
    histogram,
    list_duplicates,
    summarize_tokens,
)
from dashboard.datasets.analysis.leaks import find_leak, read_leaks
from dashboard.datasets.analysis.results import (
    find_statistics,
    find_token_lengths,
    retry,
)
from dashboard.datasets.models import (
    Dataset,
    DatasetVersion,
    TokenLengths,
)
from dashboard.datasets.queries import get_dataset, list_versions, versions_with_use
from dashboard.datasets.splits import other_split
from dashboard.datasets.token_preview import list_models, refuse_model
from dashboard.datasets.version_forms import TokenForm
from dashboard.pages.requests import Request, choose_version, read_number

LIMIT = 512  # a run's own default


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, dataset=get_dataset)
def dataset_statistics(
    request: Request, membership: Membership, team: Team, dataset: Dataset
) -> HttpResponse:
    if request.method == "POST":
        form = TokenForm(request.POST)
        if form.is_valid() and (why := refuse_model(team, form.cleaned_data["model"])):
            form.add_error("model", ValidationError(why, code="datasets.unknown_model"))
        if not form.is_valid():
            return _show(request, membership, dataset, form, status=422)
        version = choose_version(
            versions_with_use(dataset), request.POST.get("version")
        )
        model = form.cleaned_data["model"]
        retry(find_token_lengths(version, model), team_id=team.pk)
        query = {
            "version": version.number,
            "model": model,
            "limit": form.cleaned_data["limit"] or LIMIT,
        }
        url = reverse("dataset_statistics", args=[team.slug, dataset.pk])
        return redirect(f"{url}?{urlencode(query)}#tokens")
    model = request.GET.get("model")
    form = TokenForm(
        initial={"limit": _limit(request), **({"model": model} if model else {})}
    )
    return _show(request, membership, dataset, form)


def _limit(request: Request) -> int:
    form = TokenForm({"model": "-", "limit": request.GET.get("limit", "")})
    form.is_valid()
    return form.cleaned_data.get("limit") or LIMIT


def _show(
    request: Request,
    membership: Membership,
    dataset: Dataset,
    form: TokenForm,
    *,
    status: int = 200,
) -> HttpResponse:
    versions = versions_with_use(dataset)
    fields = request.POST if request.method == "POST" else request.GET
    version = choose_version(versions, fields.get("version"))
    statistics = find_statistics(version)
    tokens = _tokens(version, request.GET.get("model", ""))
    models = list_models(membership.team)
    form.initial.setdefault("model", next(iter(models), ""))
    context = {
        "team": membership.team,
        "dataset": dataset,
        "versions": versions,
        "version": version,
        "tab": "statistics",
        "found": statistics,
        "tokens": tokens,
        "form": form,
        "models": models,
        "can_write": membership.can_write,
        "counted": version.token_lengths.values_list("model", flat=True),
        "is_working": _is_working(statistics) or (tokens and _is_working(tokens)),
        **_results(statistics.result, tokens, _limit(request)),
    }
    return render(request, "datasets/statistics.html", context, status=status)


def _tokens(version: DatasetVersion, model: str) -> TokenLengths | None:
    """Only those that a member has requested."""
    lengths = version.token_lengths.filter(model=model)
    is_requested = model and "\x00" not in model and lengths.exists()
    return find_token_lengths(version, model) if is_requested else None


def _is_working(analysis: Any) -> bool:
    return not (analysis.is_done or analysis.problem)


def _results(
    result: dict[str, Any] | None, tokens: TokenLengths | None, limit: int
) -> dict[str, Any]:
    context: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    if result:
        first_of = result.get("first_of_types", {})  # not of an older version
        context["answer_types"] = [
            (name, count, first_of.get(name)) for name, count in result["answer_types"]
        ]
        duplicates = list_duplicates(result)
        num_repeats = sum(duplicate.num_more for duplicate in duplicates)
        context |= {
            "result": result,
            "duplicates": duplicates,
            "num_repeats": num_repeats,
            "clean": [
                duplicate.title for duplicate in duplicates if not duplicate.num_more
            ],
        }
        figures |= {
            name: _drawn(result[name], unit="characters")
            for name in ("prompt_chars", "answer_chars")
            if result[name]
        }
    if tokens and tokens.is_done:
        summary = summarize_tokens(tokens, limit)
        context["summary"] = summary
        figures["tokens"] = _drawn(summary.lengths, unit="tokens", limit=limit)
    return {**context, "figures": figures}


def _drawn(
    lengths: dict[str, Any], *, unit: str, limit: int | None = None
) -> dict[str, Any]:
    return histogram(
        lengths["bins"], width=lengths["bin_width"], unit=unit, limit=limit
    )


@require_GET
@look_up(get_membership, dataset=get_dataset)
def dataset_changes(
    request: Request, membership: Membership, team: Team, dataset: Dataset
) -> HttpResponse:
    versions = versions_with_use(dataset)
    new = choose_version(versions, request.GET.get("version"))
    # The requested version; else the one before the new one, if any.
    number = request.GET.get("old")
    old = (
        choose_version(versions, number)
        if number
        else next(
            (version for version in versions if version.number < new.number), None
        )
    )
    difference = find_difference(old, new) if old and old != new else None
    page = None
    if difference and difference.result is not None:
        kind = _read_kind(request, differences.KINDS, difference.result, "changed")
        page = read_changes(difference, kind, read_number(request.GET.get("from")) or 0)
    context = {
        "team": team,
        "dataset": dataset,
        "tab": "versions",
        "can_write": membership.can_write,
        "versions": versions,
        "version": new,
        "old": old,
        "found": difference,
        "page": page,
        "kinds": list(differences.KINDS),
    }
    return render(request, "datasets/changes.html", context)


def _read_kind(
    request: Request, kinds: Iterable[str], result: Mapping[str, Any], default: str
) -> str:
    """Return the kind in the URL; else the first with results."""
    kind = request.GET.get("kind", "")
    with_results = (name for name in kinds if result[name])
    return kind if kind in kinds else next(with_results, default)


@require_GET
@look_up(get_membership, dataset=get_dataset)
def dataset_leaks(
    request: Request, membership: Membership, team: Team, dataset: Dataset
) -> HttpResponse:
    versions = versions_with_use(dataset)
    version = choose_version(versions, request.GET.get("version"))
    # The version with this key; else the other half of a split.
    key = request.GET.get("against")
    others = list_versions(team)
    other = (
        others.filter(pk=read_number(key) or 0).first() if key else other_split(version)
    )
    if key and other is None:
        raise Http404("No such version.")
    leak = find_leak(version, other) if other and other != version else None
    page = None
    if leak and leak.result is not None:
        kind = _read_kind(request, leaks.KINDS, leak.result, "exact")
        page = read_leaks(leak, kind, read_number(request.GET.get("from")) or 0)
    context = {
        "team": team,
        "dataset": dataset,
        "tab": "versions",
        "can_write": membership.can_write,
        "versions": versions,
        "version": version,
        "others": others.exclude(pk=version.pk),
        "other": other,
        "found": leak,
        "page": page,
        "kinds": [
            (
                kind,
                leaks.KINDS[kind],
                leak.result[kind] if leak and leak.result else 0,
            )
            for kind in leaks.KINDS
        ],
    }
    return render(request, "datasets/leaks.html", context)
