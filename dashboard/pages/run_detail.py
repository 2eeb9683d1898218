"""A run's pages: overview, lineage, settings and logs; and its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.http import content_disposition_header
from django.utils.safestring import SafeString
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_GET, require_safe
from pydantic import ValidationError

from dashboard.accounts.access import get_membership, look_up
from dashboard.accounts.models import Membership, Team
from dashboard.analysis.audit.jumps import differences, explain_jump
from dashboard.analysis.comments import comments_on
from dashboard.live.consumer import answer_page
from dashboard.pages.requests import Request, query_number
from dashboard.pages.run_charts import chart_context, read_features
from dashboard.project.errors import or_404
from dashboard.runs.charts.chart import Chart
from dashboard.runs.charts.figures import (
    is_filled,
    overview_charts,
)
from dashboard.runs.config.snapshot import (
    WRITERS,
    compare_with_defaults,
    list_phases,
    reported_settings,
    write_setting,
)
from dashboard.runs.headline import kept_checkpoints, read_headline
from dashboard.runs.models import Run, RunState
from dashboard.runs.progress import is_stuck
from dashboard.runs.queries import (
    confinements_of,
    find_lineage,
    get_any_run,
    get_run,
    if_ended,
    list_changes,
    list_evaluation_sets,
    settings_of,
)
from dashboard.runs.stream import read_frame
from dashboard.runs.trash import KEPT
from dashboard.supervision.log_reading import read_part, read_whole_line
from dashboard.supervision.log_search import (
    SOURCES,
    Source,
    find_source,
    make_pattern,
    pieces_of,
    search,
)
from dashboard.web.downloads import Streamed, attach
from dashboard.web.fragments import render_once
from trainer.config import PhaseConfig, RunConfig

NUM_LAST_LINES = 20  # of a failed run's log


@require_GET
@look_up(get_membership, run=get_any_run)
def run(request: Request, membership: Membership, team: Team, run: Run) -> HttpResponse:
    if run.trashed_at is not None:
        context = {
            "team": team,
            "run": run,
            "kept": KEPT.days,
            "deleted_at": run.trashed_at + KEPT,
        }
        return render(request, "runs/trashed.html", context)
    config = settings_of(run)
    charts = _charts_of(run, config)
    context = {
        "team": team,
        "run": run,
        "tab": "overview",
        "charts": charts,
        "figures": {chart.id: chart.figure for chart in charts},
        "headline": _headline(request, membership, run, charts),
        **chart_context(request, team, run),
        "phases": _phases(config) if config and config.phases else (),
        "starting": _starting(run, config),
        "failure": _failure(run),
        "is_empty": not run.last_step
        and (run.state == RunState.FAILED or is_stuck(run)),
        "reward_edit": _reward_edit(run),
        "comments": list(comments_on(run)),
    }
    return render(request, "runs/overview.html", context)


def _phases(config: RunConfig) -> list[tuple[PhaseConfig, list[tuple[str, str, str]]]]:
    """List phases with the settings that differ from those of the one before."""
    phases = config.phase_configs
    changes = [list(differences(a.config, b.config)) for a, b in pairwise(phases)]
    return list(zip(phases, [[], *changes], strict=True))


def _starting(run: Run, config: RunConfig | None) -> dict[str, int] | None:
    """Describe what comes before the first step; None after it, or without a step."""
    is_over = run.has_ended or run.state == RunState.PAUSED
    if config is None or run.last_step or is_over or run.is_external:
        return None
    first = config.phase_configs[0].config
    num_sets = bool(first.data.num_eval_rows) + len(first.evaluation.sets)
    return {"num_sets": num_sets if first.evaluation.every_steps else 0}


def _failure(run: Run) -> dict[str, Any] | None:
    """Return the last lines of a failed run's log, unless they are its reason again."""
    if run.state != RunState.FAILED:
        return None
    source = find_source(run, {})
    lines = read_part(source.path).lines[-NUM_LAST_LINES:] if source else []
    says_more = any(line.text.strip() not in run.fail_reason for line in lines)
    return {"lines": lines if says_more else []}


def _reward_edit(run: Run) -> str:
    """Return the editor's query for a reward that paused the run, with the rows that
    failed.
    """
    version = run.recipe_version
    if version is None or not is_stuck(run):
        return ""
    paused = run.events.filter(type="run_paused").order_by("-seq").first()
    faults = paused.body.get("faults", ()) if paused else ()
    if not faults:
        return ""
    rows = ",".join(map(str, faults[0].get("rows", ())))
    shown = {"dataset": run.dataset_version_id, "rows": rows} if rows else {}
    return urlencode(
        {"version": version.number, **(shown or {"run": run.pk}), "continue": run.pk}
    )


@require_GET
@look_up(get_membership, run=get_run)
def headline(request: Request, membership: Membership, run: Run) -> HttpResponse:
    """Show the part of the overview that changes with each step."""
    return HttpResponse(_headline(request, membership, run, _charts_of(run)))


def _charts_of(run: Run, config: RunConfig | None = None) -> list[Chart]:
    charts = overview_charts(read_features(run, config))
    return [chart for chart in charts if is_filled(chart, run)]


def _headline(
    request: Request, membership: Membership, run: Run, charts: Sequence[Chart]
) -> SafeString:
    def describe() -> dict[str, Any]:
        headline_ = read_headline(run)
        return {
            "team": membership.team,
            "run": run,
            "headline": headline_,
            "jump": explain_jump(run, headline_.reward),
            "charts_here": {chart.id for chart in charts},
            "can_write": membership.can_write,
        }

    checkpoints = kept_checkpoints(run) if run.has_ended else ()
    shown = (run.took, *(checkpoint.pk for checkpoint in checkpoints))
    # Rollups of an imported run may be filled after its end.
    key = None if run.is_imported else if_ended(run, membership.can_write, *shown)
    return render_once(request, "runs/headline.html", key, describe)


@require_GET
@look_up(get_membership, run=get_run)
def lineage(request: Request, team: Team, run: Run) -> HttpResponse:
    context = {"team": team, "run": run, "tab": "lineage", "lineage": find_lineage(run)}
    return render(request, "runs/lineage.html", context)


@require_GET
@look_up(get_membership, run=get_run)
def config(request: Request, team: Team, run: Run) -> HttpResponse:
    """?all=1 lists every setting, ?q= those with these words."""
    context = {"team": team, "run": run, "tab": "config"}
    context |= _settings(run, request.GET)
    return render(request, "runs/config.html", context)


def _settings(run: Run, query: Mapping[str, str]) -> dict[str, Any]:
    config = settings_of(run)
    if config is None:
        return {
            "rules": run.config["reward"]["recipe"]["rules"],
            "reported": [
                (k, write_setting(v)) for k, v in reported_settings(run.config)
            ],
        }
    changes = list_changes(run)
    changed = {
        path: change for change in reversed(changes) for path, *_ in change.values
    }
    parts = compare_with_defaults(config)
    settings = [setting for part in parts for setting in part.settings]
    text, is_all = query.get("q", "").strip()[:200], query.get("all") == "1"
    phases = list_phases(config)
    in_phases = any(own.has(text) for phase in phases for own in phase.settings)
    shown = [
        (
            part.title,
            [
                (setting, changed.get(setting.path))
                for setting in part.settings
                if (setting.has(text) or (in_phases and setting.path == "phases"))
                and (is_all or setting.differs or setting.path in changed)
            ],
        )
        for part in parts
    ]
    return {
        "parts": [(title, settings_) for title, settings_ in shown if settings_],
        "phases": phases,
        "num_settings": len(settings),
        "num_changed": sum(s.differs or s.path in changed for s in settings),
        "num_shown": sum(len(settings_) for _, settings_ in shown),
        "text": text,
        "is_all": is_all,
        "evaluation_sets": list_evaluation_sets(run),
        "changes": changes,
        "runs_code": config.runs_code,
        "confinements": confinements_of(run) if config.runs_code else (),
    }


@require_GET
@look_up(get_membership, run=get_run)
def config_file(request: Request, run: Run, suffix: str) -> HttpResponse:
    """Send the snapshot as a file for `python -m trainer run`."""
    if suffix not in WRITERS:
        raise Http404("Config files have the suffix toml or json.")
    if run.is_imported:
        raise Http404("An imported run has no settings.")
    try:
        config = RunConfig.model_validate(run.config)
    except ValidationError:
        sentence = f"This release of Cohort does not know all settings of {run.name}."
        return HttpResponse(sentence, status=409, content_type="text/plain")
    text = WRITERS[suffix](run, config)
    name = f"{run.name}-{run.id}.{suffix}"
    return HttpResponse(
        text,
        content_type="text/plain; charset=utf-8",
        headers={
            "Content-Disposition": content_disposition_header(True, name)
            or "attachment"
        },
    )


@gzip_page
@require_GET
@look_up(get_membership, run=get_run)
def stream(request: Request, run: Run) -> JsonResponse:
    """New events, as the socket sends them."""
    return answer_page(request, lambda position: read_frame(run, position))


_number = partial(query_number, digits=15)  # bytes and lines of a log


@require_safe
@look_up(get_membership, run=get_run)
def run_logs(request: Request, team: Team, run: Run) -> HttpResponse:
    source = find_source(run, request.GET)
    context = {
        "team": team,
        "run": run,
        "tab": "logs",
        "attempts": run.attempts.order_by("number"),
        "source": source,
        "sources": SOURCES,
        "ranks": list(source.files.rank_logs) if source else [],
    }
    return render(request, "supervision/logs.html", context)


@require_safe
@look_up(get_membership, run=get_run)
def log_part(request: Request, run: Run) -> JsonResponse:
    """?after=<byte> or ?before=<byte> with &mark=, ?line=, or the end."""
    return _respond(request, run, _read_part)


@require_safe
@look_up(get_membership, run=get_run)
def log_line(request: Request, run: Run) -> JsonResponse:
    """?at=<byte>: the whole line that begins there."""
    return _respond(
        request,
        run,
        lambda request, source: asdict(
            read_whole_line(source.path, _number(request, "at") or 0)
        ),
    )


@require_safe
@look_up(get_membership, run=get_run)
def log_search(request: Request, run: Run) -> JsonResponse:
    """?q=&regex=1&case=1&first=<of the matches to list>"""
    return _respond(request, run, _search)


@require_safe
@look_up(get_membership, run=get_run)
def download_log(request: Request, run: Run) -> Streamed:
    source = find_source(run, request.GET)
    if source is None or not source.path.is_file():
        raise Http404("This log is empty so far.")
    name = f"run-{run.id}-attempt-{source.attempt.number}-{source.name}.log"
    return attach(
        pieces_of(source), filename=name, content_type="text/plain; charset=utf-8"
    )


def _respond(
    request: Request,
    run: Run,
    read: Callable[[Request, Source], dict[str, Any]],
) -> JsonResponse:
    none_yet = "No logs yet: no worker has started this run."
    source = or_404(find_source(run, request.GET), none_yet)
    try:
        return JsonResponse(read(request, source))
    except FileNotFoundError:
        return JsonResponse({"error": source.missing}, status=404)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)


def _read_part(request: Request, source: Source) -> dict[str, Any]:
    part = read_part(
        source.path,
        after=_number(request, "after"),
        before=_number(request, "before"),
        line=_number(request, "line"),
        mark=request.GET.get("mark", ""),
    )
    newer = source.attempt.run.attempts.filter(number__gt=source.attempt.number)
    fields = asdict(part)
    for line, time in zip(fields["lines"], source.times_of(part.lines), strict=True):
        line["time"] = time
    return {
        **fields,
        "missing": source.missing,
        "is_closed": source.attempt.ended_at is not None,
        "is_last_attempt": not newer.exists(),
    }


def _search(request: Request, source: Source) -> dict[str, Any]:
    pattern = make_pattern(
        request.GET.get("q", ""),
        is_pattern=request.GET.get("regex") == "1",
        ignore_case=request.GET.get("case") != "1",
    )
    first = _number(request, "first") or 0
    return asdict(search(source.path, pattern, first=first))
