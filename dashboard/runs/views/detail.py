from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.live.messages import parse_position
from dashboard.runs.curves import MAX_POINTS, POINTS_PER_BUCKET, read_history
from dashboard.runs.directory import ROWS, eval_rows, run_directory
from dashboard.runs.figures import overview_sections
from dashboard.runs.intervals import ENDS, Interval, is_bound
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run, list_evaluation_sets
from dashboard.runs.sandboxes import confinements_of
from dashboard.runs.snapshot import compare_with_defaults, write_json, write_toml
from dashboard.runs.stream import read_frame
from trainer.config import RunConfig

MAX_METRICS = 200


@require_GET
def run(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run_ = get_run(team_, run_id)
    config = RunConfig.model_validate(run_.config)
    sections = overview_sections(config)
    context = {
        "team": team_,
        "run": run_,
        "tab": "overview",
        "sections": sections,
        "figures": {c.id: c.figure for s in sections for c in s.charts if c.figure},
        "last_values": list(_last_values(run_)),
        "phases": config.stages if config.phases else (),
        "confinements": confinements_of(run_) if config.runs_code else (),
    }
    return render(request, "runs/overview.html", context)


def _last_values(run: Run) -> Iterator[tuple[str, float | None, Interval | None]]:
    """Families together (kl/mean, kl/coef …), in the order they first came."""
    last: dict[str, float | None] = run.summary.get("last", {})
    others = sorted(name for name in last if name not in set(run.metric_names))
    names = [name for name in [*run.metric_names, *others] if not is_bound(name)]
    families = list(dict.fromkeys(name.partition("/")[0] for name in names))
    for name in sorted(names, key=lambda n: families.index(n.partition("/")[0])):
        yield name, last.get(name), _interval(last, name)


def _interval(last: Mapping[str, float | None], name: str) -> Interval | None:
    low, high = (last.get(f"{name}/{end}") for end in ENDS)
    return None if low is None or high is None else (low, high)


@require_GET
def tab(request: HttpRequest, team: str, run_id: str, tab: str) -> HttpResponse:
    team_ = get_team(request, team)
    run_ = get_run(team_, int(run_id))
    context = {"team": team_, "run": run_, "tab": tab, **TABS[tab](run_)}
    return render(request, f"runs/{tab}.html", context)


def _config(run: Run) -> dict[str, Any]:
    config = RunConfig.model_validate(run.config)
    return {
        "parts": compare_with_defaults(config),
        "evaluation_sets": list_evaluation_sets(run),
        "runs_code": config.runs_code,
        "confinements": confinements_of(run) if config.runs_code else (),
    }


def _checkpoints(run: Run) -> dict[str, Any]:
    folder = run_directory(run.id).checkpoints
    saved = run.checkpoints.order_by("-step", "-epoch")
    return {
        "folder": folder,
        "checkpoints": [(c, (folder / c.name).is_dir()) for c in saved],
    }


TABS = {"config": _config, "checkpoints": _checkpoints}


def _write_toml(run: Run, config: RunConfig) -> str:
    """Before the settings, what is in the files that they name."""
    files = [(ROWS, run.dataset_version, run.dataset_version.num_rows)]
    files += [
        (eval_rows(one.name), one.dataset_version, one.num_rows)
        for one in list_evaluation_sets(run)
    ]
    lines = [
        f"# {file}: {' '.join(str(version).split())}, {num_rows:,} of "
        f"{version.num_rows:,} rows, SHA-256 of all {version.content_sha256}\n"
        for file, version, num_rows in files
    ]
    return "".join(lines) + "\n" + write_toml(config)


def _write_json(_run: Run, config: RunConfig) -> str:
    return write_json(config)


WRITERS = {"toml": _write_toml, "json": _write_json}


@require_GET
def config_file(
    request: HttpRequest, team: str, run_id: int, suffix: str
) -> HttpResponse:
    """The snapshot as a file for `python -m trainer run`."""
    run_ = get_run(get_team(request, team), run_id)
    if suffix not in WRITERS:
        raise Http404("A config is written as toml or json.")
    text = WRITERS[suffix](run_, RunConfig.model_validate(run_.config))
    name = f"{run_.name}-{run_.id}.{suffix}"
    return HttpResponse(
        text,
        content_type="text/plain; charset=utf-8",
        headers={
            "Content-Disposition": content_disposition_header(True, name)
            or "attachment"
        },
    )


@require_GET
def stream(request: HttpRequest, team: str, run_id: int) -> JsonResponse:
    """What the page lacks, as the socket would send it."""
    run_ = get_run(get_team(request, team), run_id)
    try:
        position = parse_position(request.GET)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    return JsonResponse(read_frame(run_, position))


@require_GET
def curves(request: HttpRequest, team: str, run_id: int) -> JsonResponse:
    """?metrics=a,b&first_step=&last_step=&max_points= for a closer look."""
    run_ = get_run(get_team(request, team), run_id)
    try:
        names = _metric_names(request)
        max_points = _number(request, "max_points", MAX_POINTS)
        first, last = (_number(request, f"{end}_step", None) for end in BOUNDS)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    history = read_history(
        run_,
        names,
        max_points=max(POINTS_PER_BUCKET, min(max_points or 0, 10 * MAX_POINTS)),
        first_step=first,
        last_step=last,
    )
    return JsonResponse(
        {"curves": {n: asdict(c) for n, c in history.curves.items()}}
        | {"clock": asdict(history.clock), "is_thinned": history.is_thinned}
    )


BOUNDS = ("first", "last")


def _metric_names(request: HttpRequest) -> list[str]:
    names = [name for name in request.GET.get("metrics", "").split(",") if name]
    if not 1 <= len(names) <= MAX_METRICS:
        raise ValueError(
            f"metrics must name 1 to {MAX_METRICS} metrics, separated by commas; got "
            f"{len(names)}."
        )
    return names


def _number(request: HttpRequest, name: str, default: int | None) -> int | None:
    text = request.GET.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError(f"{name} must be a whole number; got {text!r}.")
    return int(text)
