"""The run list: filtered, grouped, live; saved views, and boards of charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpResponse, JsonResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.functional import cached_property
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_membership, look_up
from dashboard.accounts.models import Membership, Team, User
from dashboard.accounts.services import last_entry
from dashboard.analysis.sweeps.axes import swept_settings
from dashboard.costs.ledger import read_bills
from dashboard.datasets.models import Dataset
from dashboard.pages.requests import Request, read_id, redirect_with
from dashboard.project.database import FixedQuery
from dashboard.project.errors import UserError
from dashboard.rewards.models import RewardRecipe
from dashboard.runs.config.fields import all_fields
from dashboard.runs.launch.base_models import starter_models
from dashboard.runs.models import (
    Run,
    RunState,
    SavedView,
    Sweep,
    ViewPage,
    trained_seconds,
)
from dashboard.runs.table.columns import (
    COST,
    NAME,
    OWN,
    Column,
    default_columns,
    find_column,
    pin_runs_at_work,
    sort_runs,
)
from dashboard.runs.table.expressions import CONFIG
from dashboard.runs.table.grouping import (
    ROWS_IN_A_GROUP,
    GroupedRuns,
    count_groups,
    group_runs,
    read_group,
    read_open,
    runs_of,
)
from dashboard.runs.table.parser import QueryError
from dashboard.runs.table.query import (
    GROUPABLE,
    Facets,
    ListQuery,
    count_runs,
    list_keys,
    list_values,
    pace_of_active,
    read_facets,
    with_related,
)
from dashboard.runs.table.rows import SPARKLINE, Row, make_rows, with_settings
from dashboard.runs.table.saved_views import (
    change_view,
    clean_query,
    delete_view,
    find_default,
    get_view,
    list_views,
    save_view,
    set_default,
)
from dashboard.runs.table.sql import ACTIVE
from dashboard.runs.trash import KEPT
from dashboard.supervision.starter import GAME
from dashboard.web.edits import BASE, EditConflict, show_conflict

PAGE_SIZE = 50
MAX_SWEPT, MAX_SETTINGS = 100, 4  # runs of a sweep that are read, and columns of it
ALIKE = ("model", "dataset", "reward")  # columns with one value in most sweeps
GROUPS_ON_A_PAGE = 50


class CountedPaginator(Paginator[Any]):
    """Takes the count from a query without ordering."""

    def __init__(self, found: Any, size: int, count: int) -> None:
        super().__init__(found, size)
        self._count = count

    @cached_property
    def count(self) -> int:
        return self._count


@require_safe
@look_up(get_membership)
def runs(request: Request, membership: Membership, team: Team) -> HttpResponse:
    views = list_views(team, request.user, ViewPage.RUNS)
    if not request.GET and (view := find_default(views)):
        return redirect("runs_view", team.slug, view.code)
    query = _show_swept(team, ListQuery.read(request.GET))
    context = _frame(request, membership, query, views)
    try:
        context |= _listed(request, team, query, context["numbers"])
    except QueryError as error:
        context |= {
            "error": error,
            "at": (
                query.text[: error.start],
                query.text[error.start : error.end],
                query.text[error.end :],
            ),
        }
    return render(request, "runs/list.html", context)


def _show_swept(team: Team, query: ListQuery) -> ListQuery:
    """Show a sweep's settings in place of what its runs have in common."""
    if not query.sweep or query.written_columns:
        return query
    runs = Run.objects.filter(team=team, sweep=query.sweep)[:MAX_SWEPT]
    keys = [s.key for s in swept_settings(list(runs)) if s.key in all_fields()]
    columns = (find_column(f"{CONFIG}{key}") for key in keys[:MAX_SETTINGS])
    swept = tuple(filter(None, columns))
    state, *others = (c for c in query.columns if c.key not in ALIKE)
    return replace(query, columns=(state, *swept, *others))


def _frame(
    request: Request, membership: Membership, query: ListQuery, views: list[SavedView]
) -> dict[str, Any]:
    """Describe the page around the rows."""
    team = membership.team
    sweeps = Sweep.objects.filter(team=team, pk=query.sweep or 0)
    sweep = sweeps.first() if query.sweep else None
    facets = read_facets(team)
    numbers, starters = count_runs(team), starter_models()
    chosen = {view.code: view for view in views}.get(request.GET.get("view", ""))
    try:
        here = clean_query(request.GET.urlencode(), ViewPage.RUNS)
    except ValueError:  # reported when the view is saved
        here = request.GET.urlencode()
    values = (query.state, query.owner, query.model, query.dataset)
    keys = [key.strip() for key in request.GET.get("by", "").split(",") if key.strip()]
    return {
        "team": team,
        "can_write": membership.can_write,
        "sweep": sweep,
        "query": query,
        "facets": facets,
        "chips": list(_chips(request, query, facets, sweep)),
        "num_filters": sum(map(bool, values)),
        "states": [ACTIVE, *RunState.values],
        "headers": [_header(c, query.sort) for c in (NAME, *query.columns)],
        "groupable": GROUPABLE,
        "column_keys": {
            "now": list(map(_entry, query.columns)),
            "defaults": list(map(_entry, default_columns())),
            "own": list(map(_entry, OWN.values())),
        },
        "sparkline": SPARKLINE,
        "by": ",".join(query.by),
        "unknown_by": next((key[:60] for key in keys if key not in query.by), ""),
        "views": views,
        "view": chosen,
        "is_view_changed": chosen is not None and chosen.query != here,
        "address": here,
        "shows_curves": _has_panel(request),
        "numbers": numbers,
        # What a team without runs has. The form preselects a starter.
        "first_steps": {}
        if numbers["total"]
        else {
            "starter": bool(starters),
            "dataset": Dataset.objects.filter(team=team, trashed_at=None).exists(),
            "reward": RewardRecipe.objects.filter(team=team).exists(),
        },
        "has_game": any(starter.key == GAME for starter in starters),
        "kept_days": KEPT.days,
    }


def _chips(
    request: Request, query: ListQuery, facets: Facets, sweep: Sweep | None
) -> Iterator[tuple[str, str]]:
    """List each active filter, and the address without it."""
    active = {
        "state": ("State", query.state),
        "owner": ("Owner", dict(facets.owners).get(query.owner or 0, "")),
        "model": ("Model", query.model),
        "dataset": ("Dataset", dict(facets.datasets).get(query.dataset or 0, "")),
        "sweep": ("Sweep", str(sweep or "")),
        "by": ("Grouped by", ", ".join(query.by)),
    }
    for name, (title, value) in active.items():
        if value:
            remaining = request.GET.copy()
            for gone in (name, "page", *(["open"] if name == "by" else [])):
                remaining.pop(gone, None)
            yield f"{title}: {value}", f"?{remaining.urlencode() or 'view='}"


def _entry(column: Column) -> dict[str, str]:
    return {"key": column.key, "title": column.title, "note": column.note}


class _AllRuns:
    """Pages of the list without a filter, which has the same queries for each team."""

    def __init__(self, team: Team, user: User, query: ListQuery) -> None:
        self._of = (team.pk, user.pk)
        self._query = query

    def __getitem__(self, part: slice) -> list[Run]:
        if part.start == part.stop:
            return []  # of a team without runs
        return _query_of(self._query, part.start, part.stop)(*self._of)


@lru_cache(maxsize=32)  # each of 100 kB, with many columns 250
def _query_of(query: ListQuery, start: int, stop: int) -> FixedQuery[Run]:
    return FixedQuery(
        lambda team, user: _drawn(query.find(team, user), user, query)[start:stop]
    )


def _drawn(runs_: QuerySet[Run], user: User | int, query: ListQuery) -> QuerySet[Run]:
    runs = with_related(runs_, user)
    runs = sort_runs(runs, query.sort) if query.sort else pin_runs_at_work(runs)
    return with_settings(runs, query.columns)


def _listed(
    request: Request, team: Team, query: ListQuery, numbers: Mapping[str, int]
) -> dict[str, Any]:
    rows_: Any
    # The order by cost follows from prices, so its query is not fixed.
    if query.by or query.is_filtered or query.sort.removeprefix("-") == COST:
        runs_ = query.find(team, request.user)
        count = runs_.count()
        if query.by:
            return {"num_found": count, **_grouped(request, runs_, query)}
        rows_ = _drawn(runs_, request.user, query)
    else:
        count = numbers["shown"]
        rows_ = _AllRuns(team, request.user, query)
    page = CountedPaginator(rows_, PAGE_SIZE, count).get_page(request.GET.get("page"))
    listed = _with_costs(page, query)
    rows = make_rows(listed, query.columns, has_panel=_has_panel(request))
    return {"num_found": count, "page": page, "rows": rows, **_curves(request, rows)}


def _with_costs(runs: Iterable[Run], query: ListQuery) -> list[Run]:
    """Read what the runs cost, where a column shows it; four queries at most."""
    listed = list(runs)
    if any(column.key == COST for column in query.columns):
        bills = read_bills(listed)
        for run in listed:
            vars(run)["cost_text"] = bills[run.pk].text
    return listed


def _has_panel(request: Request) -> bool:
    """Tell whether the address opens the panel of curves."""
    return bool(request.GET.get("curves"))


def _curves(request: Request, rows: list[Row]) -> dict[str, Any]:
    if not _has_panel(request):
        return {}
    return {"curves": [row.drawn for row in rows]}


def _grouped(
    request: Request, found: QuerySet[Run], query: ListQuery
) -> dict[str, Any]:
    rows = group_runs(found, query.by, query.columns, query.sort)
    count = count_groups(found, query.by)
    page = CountedPaginator(rows, GROUPS_ON_A_PAGE, count).get_page(
        request.GET.get("page")
    )
    groups = [read_group(row, query.by, query.columns) for row in page]
    is_open = read_open(request.GET.getlist("open"), len(query.by))
    for group in groups:
        if group.values in is_open:
            group.is_open = True
            runs_ = _drawn(runs_of(found, group), request.user, query)
            listed = _with_costs(runs_[:ROWS_IN_A_GROUP], query)
            group.rows = make_rows(listed, query.columns, has_panel=_has_panel(request))
    return {
        "page": page,
        "groups": [(g, *_links(request, g, query)) for g in groups],
        **_curves(request, [row for group in groups for row in group.rows]),
    }


def _links(request: Request, group: GroupedRuns, query: ListQuery) -> tuple[str, str]:
    """Build the links that toggle the group, and that list its runs."""
    toggled = request.GET.copy()
    tokens = toggled.getlist("open")
    others = [token for token in tokens if token != group.token]
    toggled.setlist("open", others if group.is_open else [*tokens, group.token])
    ungrouped = request.GET.copy()
    for name in ("by", "open", "page", "view"):
        ungrouped.pop(name, None)
    ungrouped["q"] = group.query(query.text)
    return f"?{toggled.urlencode()}", f"?{ungrouped.urlencode()}"


@require_safe
@look_up(get_membership)
def runs_live(request: Request, team: Team) -> JsonResponse:
    """Changes of the displayed rows, and the current number of runs."""
    parts = request.GET.get("ids", "").split(",")
    pks = [pk for part in parts if (pk := read_id(part)) is not None]
    query = ListQuery.read(request.GET)
    try:
        total = query.find(team, request.user).count()
    except QueryError as error:
        return JsonResponse({"error": str(error)}, status=400)
    ids = pks[: PAGE_SIZE * ROWS_IN_A_GROUP]
    has_panel = _has_panel(request)
    # Settings and texts do not change.
    live = [column for column in query.columns if not column.setting]
    runs = Run.objects.filter(team=team, pk__in=ids).select_related("owner")
    runs_ = runs.defer("config", "metric_names", "summary", "notes")
    timed = runs_.annotate(pace=pace_of_active(), trained=trained_seconds())
    rows = make_rows(timed, live, draws_all=False, has_panel=has_panel)
    drawn = {row.run.pk: {"curve": row.drawn} for row in rows if has_panel}
    by_run = {row.run.pk: row.live | drawn.get(row.run.pk, {}) for row in rows}
    return JsonResponse({"total": total, "rows": by_run})


@require_safe
@look_up(get_membership)
def runs_suggest(request: Request, team: Team) -> JsonResponse:
    """Suggestions: all keys, or with ?key= its values."""
    key = request.GET.get("key", "").replace("\x00", "")[:200]
    if key:
        return JsonResponse({"values": list_values(team, key)})
    return JsonResponse(list_keys(team))


def _header(column: Column, sort: str) -> dict[str, Any]:
    """Describe a header: a click sorts numbers descending and texts ascending, the next
    reverses.
    """
    first = f"-{column.key}" if column.is_number else column.key
    second = column.key if column.is_number else f"-{column.key}"
    directions = {column.key: "ascending", f"-{column.key}": "descending"}
    return {
        "column": column,
        "next": second if sort == first else first,
        "direction": directions.get(sort),
    }


# Saved views and boards have a name and a short link.


@require_safe
@look_up(get_membership)
def runs_view(request: Request, team: Team, code: str) -> HttpResponse:
    """Follow the short link of a saved view; a board opens on the newest run."""
    return redirect(_address(team, get_view(team, request.user, code)))


@require_POST
@look_up(get_membership)
def runs_view_save(
    request: Request, membership: Membership, team: Team
) -> HttpResponse:
    """Save a view of the run list, or a board of the run that the form names."""
    query, run = request.POST.get("address", ""), request.POST.get("run")
    page = ViewPage.RUNS if run is None else ViewPage.METRICS
    is_shared = "shared" in request.POST
    _check_may_share(membership, page, is_shared=is_shared)
    try:
        view = save_view(
            team=team,
            user=request.user,
            page=page,
            name=request.POST.get("name", ""),
            query=query,
            is_shared=is_shared,
        )
    except ValueError as error:
        messages.error(request, f"{page.label.capitalize()} not saved. {error}")
        return redirect(_page_with(team, page, query, run))
    return redirect_with(
        request, f"Saved {page.label} {view}.", _address(team, view, run)
    )


@require_POST
@look_up(get_membership)
def runs_view_change(
    request: Request, membership: Membership, team: Team, code: str
) -> HttpResponse:
    """Rename, share, update or delete a view, or make it the default."""
    view = get_view(team, request.user, code)
    action, run = request.POST.get("action", ""), request.POST.get("run")
    page = ViewPage(view.page)
    if action in ("default", "no-default"):
        set_default(view, request.user, is_default=action == "default")
        how = "now opens" if action == "default" else "no longer opens"
        return redirect_with(
            request,
            f"{page.label.capitalize()} {view} {how} by default.",
            _address(team, view, run),
        )
    # The user's own views, and for members the team's.
    if view.owner_id != membership.user_id and not membership.can_write:
        raise PermissionDenied(
            f"Viewers of {team} cannot change the team's {page.label} {view}. Save "
            f"your own {page.label} instead."
        )
    if action == "delete":
        delete_view(view, user=request.user)
        return redirect_with(
            request,
            f"Deleted {page.label} {view}.",
            _page_with(team, page, view.query, run),
        )
    try:
        _change(request, membership, view, action)
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=view.name,
            back=_address(team, view, run),
            labels={
                "query": "Filters and columns"
                if page == ViewPage.RUNS
                else "Charts and their options",
                "is_shared": "For the team",
            },
            choices={
                clash.field: {
                    query: unquote_plus(query) for query in (clash.now, clash.typed)
                }
                for clash in conflict.clashes
                if clash.field == "query"
            },
            team=team,
            saved=last_entry(team, view, "view.changed"),
        )
    except ValueError as error:
        messages.error(request, f"{page.label.capitalize()} not changed. {error}")
    else:
        messages.success(request, f"Changed {page.label} {view}.")
    return redirect(_address(team, view, run))


def _change(
    request: Request, membership: Membership, view: SavedView, action: str
) -> None:
    if action == "update":
        typed: dict[str, Any] = {"query": request.POST.get("query", view.query)}
    elif action == "rename":
        is_shared = bool(request.POST.get("is_shared"))
        typed = {"name": request.POST.get("name", ""), "is_shared": is_shared}
        _check_may_share(membership, ViewPage(view.page), is_shared=is_shared)
    else:
        raise UserError(
            "views.unknown_action",
            f"Unknown action {action[:40]!r}. Use rename, update or delete.",
        )
    base = request.POST.get(BASE, "")
    change_view(view, user=membership.user, typed=typed, base=base)


def _check_may_share(
    membership: Membership, page: ViewPage, *, is_shared: bool
) -> None:
    if is_shared and not membership.can_write:
        raise PermissionDenied(
            f"Viewers of {membership.team} cannot share {page.label}s. Ask a member to "
            f"save this {page.label} for the team."
        )


def _address(team: Team, view: SavedView, run: str | None = None) -> str:
    """Build the address that a view opens; `run`: the one that shows a board."""
    page = ViewPage(view.page)
    query = QueryDict(view.query, mutable=True)
    query[page.label] = view.code
    return _page_with(team, page, query.urlencode(), run)


def _page_with(team: Team, page: ViewPage, query: str, run: str | None) -> str:
    """Build the address of a page; of boards without a run, the newest run's."""
    url = reverse("runs", args=[team.slug])
    if page == ViewPage.METRICS:
        runs = Run.objects.filter(team=team, trashed_at=None).order_by("-pk")
        pk = read_id(run) or runs.values_list("pk", flat=True).first()
        if pk is None:
            return url
        url = reverse("run_metrics", args=[team.slug, pk])
    return f"{url}?{query or f'{page.label}='}"
