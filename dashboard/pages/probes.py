"""Probes: what a model does with some prompts before, or after, it is trained."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.accounts.access import (
    get_membership,
    get_membership_for,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Team
from dashboard.analysis.probes.checkpoint_tests import (
    CheckpointTestForm,
    settings_of,
    sides_of,
    tested_version,
)
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.probes.services import (
    KEPT,
    MOST_KEPT,
    describe_wait,
    get_probe,
    get_test,
    list_probes,
    list_tests,
    probe_launched,
    waiting_reason,
)
from dashboard.jobs.queue import request_stop
from dashboard.pages.launch import show_form
from dashboard.pages.requests import Request, read_id
from dashboard.rewards.recipe_text import recipe_sentence
from dashboard.runs.launch.draft import read_draft
from dashboard.runs.launch.fit import estimate_memory
from dashboard.runs.launch.launching import check_draft
from dashboard.runs.launch.verdict import verdict_of
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from trainer.config import RunConfig

ONE_ROW: dict[str, Any] = {"num_prompts": 1, "num_samples": 2, "is_sample": True}


@require_GET
@look_up(get_membership)
def probes(request: Request, team: Team) -> HttpResponse:
    listed = [
        (probe, verdict_of(probe.config, probe.metrics)) for probe in list_probes(team)
    ]
    context = {
        "team": team,
        "listed": listed,
        "num_probes": team.probes.count(),
        "kept_days": KEPT.days,
        "most_kept": MOST_KEPT,
    }
    return render(request, "probes/list.html", context)


@require_GET
@look_up(get_membership, probe=get_probe)
def probe(request: Request, team: Team, probe: Probe) -> HttpResponse:
    if probe.checkpoint is not None:
        path = reverse("run_try", args=[team.slug, probe.checkpoint.run_id])
        return redirect(f"{path}?probe={probe.pk}")
    return render(request, "probes/probe.html", _context(team, probe))


@require_GET
@look_up(get_membership, probe=get_probe)
def probe_progress(request: Request, team: Team, probe: Probe) -> HttpResponse:
    """Show the part that changes; requested every second while it does."""
    is_short = request.GET.get("short") == "1"
    if is_short:
        waits = waiting_reason(probe)
        context = {"team": team, "probe": probe, "waits": waits, "is_asked": True}
        return render(request, "probes/progress.html", context)
    context = _context(team, probe)
    return render(request, f"probes/{context['body']}", context)


@require_POST
@look_up(get_writing_membership)
def probe_stop(request: Request, team: Team, probe_id: int) -> HttpResponse:
    probe = get_probe(team, probe_id)
    request_stop(probe, request.user, "probe.stop_requested")
    return redirect("probe", team.slug, probe_id)


@require_POST
@look_up(get_writing_membership)
def probe_launch(request: Request, team: Team) -> HttpResponse:
    """Probe what a launch form asks for, before it is launched."""
    form = read_draft(request.POST, team)
    launch = check_draft(form)
    if launch is None:
        return show_form(request, team, form, status=422)
    # A look at what episodes of a row are like.
    size = ONE_ROW if "one_row" in request.POST else {}
    try:
        begun = probe_launched(team, request.user, launch, **size)
    except ValueError as error:
        return show_form(request, team, form, refused=str(error), status=422)
    return redirect("probe", team.slug, begun.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, run=get_run)
def run_try(request: Request, team: Team, run: Run) -> HttpResponse:
    """Try a prompt on a checkpoint and its base model; ?probe= shows completions."""
    is_sent = request.method == "POST"
    version = tested_version(run)
    fields: Mapping[str, Any] = request.POST if is_sent else request.GET
    if fields.get("row") == "random":  # in place of a row's number
        row = secrets.randbelow(version.num_rows)
        query = request.GET.copy()
        query["row"] = str(row)
        return redirect(f"{request.path}?{query.urlencode()}")
    probe_id = read_id(fields.get("probe"))
    probe = None if probe_id is None else get_test(run, probe_id)
    if probe is not None:
        fields = {**settings_of(probe), **dict(fields.items())}
    form = CheckpointTestForm(run, fields, is_sent=is_sent)
    is_valid, refused = form.is_valid(), ""
    if is_sent and is_valid:
        try:
            begun = form.start(request.user)
        except ValueError as error:
            refused = str(error)
        else:
            return redirect(f"{request.path}?probe={begun.pk}")
    context = {
        "team": team,
        "run": run,
        "tab": "checkpoints",
        "form": form,
        "refused": refused,
        "tests": list_tests(run),
        "wait": "" if probe and probe.is_open else describe_wait(run.config),
        **(_context(team, probe) if probe else {}),
    }
    return render(request, "probes/try.html", context, status=422 if is_sent else 200)


def _context(team: Team, probe: Probe) -> dict[str, Any]:
    config = RunConfig.model_validate(probe.config)
    first = config.phase_configs[0].config
    shared = {
        "team": team,
        "probe": probe,
        "waits": waiting_reason(probe),
        "config": first,
        "sentence": recipe_sentence(first.reward.recipe),
        "kept_until": probe.finished_at and probe.finished_at + KEPT,
    }
    if probe.checkpoint_id is not None:
        return shared | {
            "body": "try_body.html",
            "sides": sides_of(probe),
            "row": probe.dataset_version.rows.filter(
                position__in=probe.positions
            ).first(),
        }
    groups = probe.groups.all() if probe.num_prompts == 1 else ()
    # Seconds of all steps, as the first phase's.
    step: float | None = probe.metrics.get("step/total")
    return shared | {
        "body": "probe_body.html",
        "groups": groups,
        "row": probe.dataset_version.rows.filter(position__in=probe.positions).first()
        if groups
        else None,
        "verdict": verdict_of(probe.config, probe.metrics),
        "shares": _shares(probe.metrics, first),
        "metrics": probe.metrics,
        "step": {
            name: probe.metrics.get(f"step/{name}")
            for name in ("tokens", "generate", "score", "update", "total")
        },
        "mean": _amount(probe.metrics, "mean", "Mean reward"),
        "lengths": [probe.metrics.get(f"length/{name}") for name in ("p50", "max")],
        "whole": None if step is None else step * config.optim.num_steps,
        "memory": estimate_memory(config),
        "peak_bytes": probe.metrics.get("peak_bytes"),
    }


def _shares(metrics: dict[str, Any], config: RunConfig) -> list[dict[str, Any]]:
    if "signal/share" not in metrics:
        return []
    k, size = metrics["num_samples"], config.rollout.group_size
    meaning = f"chance that a group of {size} has different rewards"
    if size > k:
        meaning += f"; an underestimate, because a prompt has only {k} completions"
    named = [("pass@1", "pass@1", "a completion is correct")]
    if k > 1:
        how = f"at least one of {k} completions is correct (unbiased estimator)"
        named.append((f"pass@{k}", f"pass@{k}", how))
    named.append((f"Groups with signal, group size {size}", "signal", meaning))
    return [_amount(metrics, name, title, how) for title, name, how in named]


def _amount(
    metrics: dict[str, Any], name: str, title: str, how: str = ""
) -> dict[str, Any]:
    """A number of a probe, with the ends of its 95% interval."""
    return {
        "title": title,
        "value": metrics.get("signal/share" if name == "signal" else name),
        "low": metrics.get(f"{name}/low"),
        "high": metrics.get(f"{name}/high"),
        "how": how,
    }
