"""The shell around every page: navigation, status and the command palette."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import F, Q, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from psycopg import sql

from dashboard.accounts.access import (
    get_membership,
    look_up,
    read_memberships,
)
from dashboard.accounts.models import Membership, Team
from dashboard.alerts.models import Alert, AlertState
from dashboard.analysis.comments import mentions_of, see_mentions
from dashboard.analysis.reports.models import Report
from dashboard.datasets.limits import is_disk_full
from dashboard.help.pages import MAX_QUERY, all_pages
from dashboard.pages.requests import Request, read_id
from dashboard.pages.templatetags.runs import RUN_TABS
from dashboard.project.database import fetch_all
from dashboard.runs.config.fields import all_fields
from dashboard.runs.control import PAUSED_BY
from dashboard.runs.models import ENDED, HELD, Run, RunState
from dashboard.supervision.workers import GONE_AFTER
from trainer.metric_names import METRICS

# The first word of a URL name selects the navigation item.
SECTIONS = {
    "compute": "compute",
    "run": "runs",
    "runs": "runs",
    "group": "runs",
    "groups": "runs",
    "completions": "runs",
    "question": "runs",
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
    "sweep": "runs",
    "reproductions": "runs",
    "model": "models",
    "models": "models",
    "report": "reports",
    "reports": "reports",
}
NEWEST_RUNS = 200  # of a team: those whose end is reported
SHOWN_NOTIFICATIONS = 5  # of each kind
SHOWN_NAMES = 5  # of each kind, by which the palette finds them
SHOWN_ENTRIES = 8  # of each group of the palette
MAX_WORDS = 8


def shell(request: HttpRequest) -> dict[str, Any]:
    memberships = SimpleLazyObject(lambda: _memberships(request, slug))
    match = request.resolver_match
    slug = match.kwargs.get("team") if match else None
    own = SimpleLazyObject(lambda: _chosen(memberships, slug))
    first_word = (match.url_name or "").split("_")[0] if match else ""
    return {
        "nav": SECTIONS.get(first_word, ""),
        "memberships": memberships,
        "own_membership": own,
        "is_disk_full": is_disk_full,
        "mail_is_set_up": settings.MAIL_IS_SET_UP,
        "sign_in_providers": settings.SIGN_IN_PROVIDERS,
        # None: Cohort was not started by `make run`.
        "make_link": settings.MAKE_LINK if settings.DATABASE_IS_EMBEDDED else None,
        "can_make_team": lambda: any(place.can_manage for place in memberships),
        # A page without a team of its own, such as a 404, shows the address's, or the
        # reader's first; what a view passes as team goes before this.
        "team": SimpleLazyObject(lambda: own.team if own else None),
    }


def _memberships(request: HttpRequest, slug: str | None) -> list[Membership]:
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return []
    places = read_memberships(request)
    count_news(places, of=_chosen(places, slug))
    return places


def _chosen(places: Iterable[Membership], slug: str | None) -> Membership | None:
    places = list(places)
    named = (place for place in places if place.team.slug == slug)
    return next(named, next(iter(places), None))


# What the top bar counts.


# Of other teams of the reader, only the mentions are shown.
COUNTS = (
    sql.SQL("""
SELECT id, (
    SELECT count(*) FROM samples_mention
    JOIN samples_comment ON samples_comment.id = comment_id
    LEFT JOIN samples_group ON samples_group.id = group_id
    LEFT JOIN runs_run ON runs_run.id = coalesce(run_id, commented_run_id)
    LEFT JOIN reports_report ON reports_report.id = report_id
    WHERE samples_mention.user_id = place.user_id AND seen_at IS NULL
    AND coalesce(runs_run.team_id, reports_report.team_id) = place.team_id
    AND deleted_at IS NULL
), own.* FROM accounts_membership AS place LEFT JOIN LATERAL (SELECT (
    SELECT count(*) FROM runs_run WHERE team_id = place.team_id
    AND state = ANY({held}) AND origin = '{{}}' AND deleted_at IS NULL
), (
    SELECT count(*) FROM runs_run WHERE team_id = place.team_id
    AND state = 'queued' AND deleted_at IS NULL
), (
    SELECT count(*) FROM training_worker
    WHERE stopped_at IS NULL AND last_seen >= now() - {gone_after}
), (
    SELECT count(*) FROM training_worker
    WHERE stopped_at IS NULL AND last_seen >= now() - {gone_after}
    AND drained_at IS NULL
), (
    SELECT count(*) FROM alerts_alert JOIN runs_run ON runs_run.id = run_id
    WHERE team_id = place.team_id
    AND alerts_alert.state = 'firing' AND NOT is_muted
    AND NOT runs_run.state = ANY({ended}) AND deleted_at IS NULL
), (
    SELECT count(*) FROM (
        SELECT owner_id, state, finished_at, deleted_at, trashed_at
        FROM runs_run WHERE team_id = place.team_id ORDER BY id DESC LIMIT {newest}
    ) AS newest
    WHERE owner_id = place.user_id AND state = ANY({ended})
    AND finished_at > coalesce(place.notifications_seen_at, place.created_at)
    AND deleted_at IS NULL AND trashed_at IS NULL
), (
    SELECT count(*) FROM runs_run WHERE team_id = place.team_id
    AND state = 'paused' AND pause_reason <> ''
    AND NOT starts_with(pause_reason, {paused_by})
    AND deleted_at IS NULL
)) AS own ON place.id = %(own)s WHERE place.user_id = %(user)s""")
    .format(
        held=[state.value for state in HELD],
        ended=[state.value for state in ENDED],
        gone_after=GONE_AFTER,
        newest=NEWEST_RUNS,
        paused_by=PAUSED_BY,
    )
    .as_string()
)
NAMES = (
    "num_mentions",
    "num_running",
    "num_waiting",
    "num_workers",
    "num_accepting",
    "num_alerts",
    "num_ended",
    "num_paused",
)


def count_news(places: Sequence[Membership], *, of: Membership | None) -> None:
    """Set the numbers of the status and notifications; one query.

    In SQL: Django took ten times as long to write these queries as the server to run.
    """
    if of is None:
        return
    counts_by_pk = {
        pk: counts
        for pk, *counts in fetch_all(
            COUNTS, {"own": of.pk, "user": of.user_id}, is_prepared=True
        )
    }
    for place in places:
        vars(place).update(zip(NAMES, counts_by_pk.get(place.pk, ()), strict=False))


@never_cache
@require_safe
@look_up(get_membership)
def shell_status(request: Request, membership: Membership) -> HttpResponse:
    """Show the pill and notifications of a page that stays open; two queries."""
    count_news([membership], of=membership)
    return render(request, "includes/status.html", {"own_membership": membership})


@never_cache
@require_safe
@look_up(get_membership)
def notifications(request: Request, membership: Membership) -> HttpResponse:
    """Show the notifications. This marks mentions and ended runs as seen."""
    opened = timezone.now()  # a run that ends while they are read is new next time
    count_news([membership], of=membership)
    newest = Run.objects.filter(team=membership.team).order_by("-pk").values("pk")
    ended = Run.objects.kept().filter(
        pk__in=newest[:NEWEST_RUNS],
        owner=membership.user,
        state__in=ENDED,
        finished_at__gt=membership.notifications_seen_at or membership.created_at,
    )
    paused = Run.objects.filter(team=membership.team, state=RunState.PAUSED)
    by_person = Q(pause_reason="") | Q(pause_reason__startswith=PAUSED_BY)
    firing = Alert.objects.filter(
        run__team=membership.team,
        run__deleted_at=None,
        is_muted=False,
        state=AlertState.FIRING,
    ).actionable()
    mentions = list(
        mentions_of(membership.user, membership.team).filter(seen_at=None)[
            :SHOWN_NOTIFICATIONS
        ]
    )
    context = {
        "team": membership.team,
        "place": membership,
        "paused": paused.exclude(by_person).order_by("-pk")[:SHOWN_NOTIFICATIONS],
        "alerts": firing.select_related("run").order_by("-id")[:SHOWN_NOTIFICATIONS],
        "mentions": mentions,
        "ended": ended.order_by("-finished_at")[:SHOWN_NOTIFICATIONS],
    }
    response = render(request, "includes/notifications.html", context)
    if request.method == "GET":
        Membership.objects.filter(pk=membership.pk).update(notifications_seen_at=opened)
        see_mentions(membership.user, [mention.pk for mention in mentions])
    return response


# The command palette.


class Entry(NamedTuple):
    """A page, setting or action that the palette finds by its title and words."""

    title: str
    to: str  # a path, or a URL's name with its query or fragment
    words: str = ""  # other names of it
    takes: str = ""  # write | manage: the right that it needs

    def address(self, team: Team, run: Run | None) -> str:
        name, mark, more = re.split(r"([?#/]|$)", self.to, maxsplit=1)
        if not name:
            return self.to
        pk = run.pk if run else 0
        args: list[Any] = [] if name in PERSONAL else [team.slug]
        args += [pk] if name in NAMES_OF_A_RUN else []
        return reverse(name, args=args) + mark + more.format(run=pk)


class Found(NamedTuple):
    title: str
    address: str
    note: str = ""


PERSONAL = {"account", "mfa_index", "person_data", "team_new"}
NAMES_OF_A_RUN = {
    *("run_try", "run_change"),
    *(name for views in RUN_TABS.values() for *_, name in views),
}
OF_A_RUN = (
    *(
        Entry(title if title == tab else f"{tab}: {title}", name)
        for tab, views in RUN_TABS.items()
        for _, title, name in views
    ),
    Entry(
        "Signal map", "run_metrics#chart-signal-map", "groups effective batch outcome"
    ),
    Entry(
        "Rule shares",
        "run_metrics#chart-signal-variance",
        "reward share by rule variance",
    ),
    Entry("Mean reward by rule", "run_metrics#chart-signal-mean", "rule contribution"),
    Entry("pass@k and maj@k", "run_metrics#chart-signal-passes", "sharpening majority"),
    Entry(
        "Step anatomy", "run_metrics#chart-signal-anatomy", "step timing phases profile"
    ),
    Entry(
        "Reward distribution",
        "run_metrics#chart-signal-rewards",
        "histogram percentile",
    ),
    Entry("Advantage distribution", "run_metrics#chart-signal-advantages", "histogram"),
    Entry("Token view", "groups", "tokens log-probs entropy ratio clipped coefficient"),
    Entry(
        "Unusual completions", "completions?surprise=right_low", "correct low reward"
    ),
    Entry("Near-duplicates", "completions?surprise=near", "unusual same completions"),
    Entry("Forgotten prompts", "run_prompts?which=forgotten", "solved pass rate class"),
    Entry("Reward audit", "run_health", "reward hacking gaming health checks"),
    Entry(
        "Sampler mismatch",
        "run_mismatch",
        "importance correction TIS staleness off-policy",
    ),
    Entry("Rescoring", "rescorings?run={run}", "rescore test on a past run"),
    Entry("Seed bands", "compare?runs={run}", "compare set of seeds interval baseline"),
    Entry("Sweep of the run", "sweep?runs={run}", "hyperparameters parallel plot"),
    Entry("Comments", "run#comments", "discuss note mention"),
    Entry("Machine", "run_metrics#machine", "system gpu cpu memory disk network"),
    Entry("Try a checkpoint", "run_try", "chat playground base model"),
    Entry("Extend or change the run", "run_change", "more steps live", "write"),
    Entry("Clone the run", "run_new?clone={run}", "copy again", "write"),
)
ACTIONS = (
    Entry("New run", "run_new", "launch train start test first", "write"),
    Entry(
        "Upload a dataset", "dataset_upload", "import file hugging face jsonl", "write"
    ),
    Entry(
        "Generate a dataset",
        "dataset_generate",
        "task synthetic reasoning gym",
        "write",
    ),
    Entry("New reward", "reward_new", "recipe rule create workbench try score"),
    Entry("New report", "report_new", "write document", "write"),
    Entry(
        "Import a run", "run_imports", "tensorboard csv jsonl outside trl verl", "write"
    ),
    Entry("Compare runs", "compare", "difference baseline"),
    Entry("Invite someone", "team_invitations", "member person", "manage"),
    Entry("Create an API token", "tokens", "key program client"),
    Entry("New alert rule", "alert_rules", "notify threshold", "write"),
    Entry("New team", "team_new", "create", "manage"),
)
PAGES = (
    Entry("Runs", "runs", "list table"),
    Entry("Archived runs", "runs?q=archived"),
    Entry("Trash of runs", "runs?q=trashed", "deleted restore"),
    Entry("Datasets", "datasets", "prompts data"),
    Entry("Trash of datasets", "datasets_trash", "deleted restore"),
    Entry("Prompts of runs", "prompts_of_runs", "dataset from runs failed prompts"),
    Entry("Rewards", "rewards", "recipes rules"),
    Entry("Tests of rewards", "probes", "probe test first can it learn"),
    Entry("Rescorings", "rescorings", "past run another reward"),
    Entry("Models", "models", "published checkpoints starters"),
    Entry("Reports", "reports", "documents"),
    Entry("Compute", "compute", "workers queue gpu machine drain waiting sandbox"),
    Entry("Alerts", "alerts", "firing open acknowledge"),
    Entry("Mentions", "mentions", "comments"),
    Entry("Members", "team_settings", "team people roles settings"),
    Entry("Invitations", "team_invitations", "team settings", "manage"),
    Entry("Roles", "team_roles", "permissions viewer admin owner settings"),
    Entry("Ray cluster", "team_compute", "compute gpu nodes settings"),
    Entry("Judges", "team_judges", "questions model endpoint settings"),
    Entry("Prices", "team_prices", "cost gpu hour token settings"),
    Entry("Costs", "team_costs", "money month person model gpu hours"),
    Entry("Storage", "team_storage", "disk quota retention settings"),
    Entry("API tokens", "tokens", "keys settings"),
    Entry("API reference", "docs", "rest endpoints openapi"),
    Entry("Alert rules", "alert_rules", "threshold settings"),
    Entry("Notifications", "alert_delivery", "webhook e-mail slack delivery settings"),
    Entry("Audit log", "audit_log", "history settings", "manage"),
    Entry("Danger zone", "team_danger", "transfer leave team settings"),
    Entry("Your account", "account", "password sessions sign in"),
    Entry("Two-factor sign-in", "mfa_index", "passkey totp security"),
    Entry("Your data", "person_data", "export privacy"),
)


@cache
def _metrics() -> tuple[Entry, ...]:
    return tuple(
        Entry(metric.title, f"run_metrics?q={metric.name}", metric.name)
        for group in METRICS.values()
        for metric in group
        if "<" not in metric.name
    )


@cache
def _launch_settings() -> tuple[Entry, ...]:
    return tuple(
        Entry(field.title, f"run_new#{field.html_id}", field.path, "write")
        for field in all_fields().values()
    )


@cache
def _help_topics() -> tuple[Entry, ...]:
    return tuple(
        Entry(
            section.title,
            reverse("help_topic", args=[page.name])
            + (f"#{section.slug}" if section.slug else ""),
            "" if section.title == page.title else page.title,
        )
        for page in all_pages().values()
        for section in page.sections
    )


@require_safe
@look_up(get_membership)
def search(request: Request, membership: Membership, team: Team) -> HttpResponse:
    """?q=: words; ?run=: the run whose page is open. The palette shows the same."""
    query = request.GET.get("q", "").strip()[:MAX_QUERY]
    words = query.replace("\x00", "").lower().split()[:MAX_WORDS]
    # The open one, else the team's newest.
    pk = read_id(request.GET.get("run"))
    runs = Run.objects.filter(team=team).only("name").order_by("-pk")
    run = (pk and runs.filter(pk=pk).first()) or runs.kept().first()
    context = {
        "team": team,
        "query": query,
        "groups": list(_groups(membership, words, run)),
        "is_palette": "palette" in request.GET,
    }
    part = "palette_found" if context["is_palette"] else "search"
    return render(request, f"includes/{part}.html", context)


def _groups(
    place: Membership, words: Sequence[str], run: Run | None
) -> Iterator[dict[str, Any]]:
    named = list(_named(place.team, words))
    listed: list[tuple[str, Sequence[Entry]]] = []
    if run is not None:
        listed.append((f"Run {run.name}", OF_A_RUN))
    listed += [("Actions", ACTIONS), ("Pages", PAGES)]
    if words:
        if run is not None:
            listed.append((f"Metrics of {run.name}", _metrics()))
        listed += [("Settings of a new run", _launch_settings())]
        listed += [("Help", _help_topics())]
    if words and named:
        yield {"title": "Names", "found": named}
    for title, entries in listed:
        matches = _match(entries, words, place)[:SHOWN_ENTRIES]
        if entries_of_group := [
            Found(entry.title, entry.address(place.team, run)) for entry in matches
        ]:
            yield {"title": title, "found": entries_of_group}
    if not words and named:
        yield {"title": "Newest runs", "found": named}


def _match(
    entries: Iterable[Entry], words: Sequence[str], place: Membership
) -> list[Entry]:
    """Match every word, in order: whole title, start of it, in it, elsewhere."""
    ranked = []
    query = " ".join(words)
    rights = {"": True, "write": place.can_write, "manage": place.can_manage}
    for entry in entries:
        title = entry.title.lower()
        if not rights[entry.takes]:
            continue
        if not all(word in title or word in entry.words.lower() for word in words):
            continue
        ranks = (title == query, title.startswith(query), query in title)
        ranked.append((-sum(ranks), entry))
    return [entry for _, entry in sorted(ranked, key=lambda entry: entry[0])]


def _named(team: Team, words: Sequence[str]) -> Iterator[Found]:
    """Find all with the words in the name, or the number as ID; one query."""
    kinds: list[tuple[str, str, QuerySet[Any], str]] = [
        ("Run", "run", Run.objects.filter(team=team).kept(), "name"),
        ("Dataset", "dataset", team.datasets.filter(trashed_at=None), "name"),
        ("Reward", "reward", team.recipes.all(), "name"),
        ("Report", "report", Report.objects.filter(team=team), "title"),
        ("Model", "models", team.published_models.all(), "name"),
    ]
    parts = []
    for kind, _, rows, field in kinds if words else kinds[:1]:
        matches = Q()
        for word in words:
            matches &= Q(**{f"{field}__icontains": word})
        if kind == "Run" and len(words) == 1 and (pk := read_id(words[0].lstrip("#"))):
            matches |= Q(pk=pk)
        matching = rows.filter(matches).annotate(kind=Value(kind), shown=F(field))
        matching = matching.order_by("-pk").values_list("kind", "pk", "shown")
        parts.append(matching[:SHOWN_NAMES])
    names = {kind: name for kind, name, *_ in kinds}
    for kind, pk, shown in parts[0].union(*parts[1:], all=True):
        args = [team.slug] if kind == "Model" else [team.slug, pk]
        note = f"{kind} {pk}" if kind == "Run" else kind
        yield Found(shown, reverse(names[kind], args=args), note)
