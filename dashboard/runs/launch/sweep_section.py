"""The launch form's part Several runs, as its template shows it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from dashboard.runs.config.fields import all_fields, part_title
from dashboard.runs.launch.forms import LaunchForm
from dashboard.runs.launch.sweep import MAX_RUNS, MODES, Sweep


def describe_sweep(post: Mapping[str, Any], form: LaunchForm) -> dict[str, Any]:
    sweep = Sweep.read(post)
    if sweep.used and not form.problems:
        sweep.plan(form)
    return {
        "sweep": sweep,
        "sweep_settings": _settings(),
        "sweep_modes": MODES,
        "sweep_limit": MAX_RUNS,
    }


def _settings() -> list[tuple[str, list[tuple[str, str]]]]:
    """Each part's settings, by path and title."""
    parts = groupby(all_fields().values(), lambda one: one.path.rpartition(".")[0])
    return [
        (
            part_title(part) if part else "Run",
            [(one.path, one.title) for one in fields],
        )
        for part, fields in parts
    ]
