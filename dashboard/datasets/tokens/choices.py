"""Models whose tokenizer a team may want to count with."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from dashboard.accounts.models import Team


def list_models(team: Team) -> list[str]:
    """The newest run's, folders of the starter models, what other runs have used."""
    starters = sorted((Path(settings.COHORT_DATA) / "starter").glob("*/model"))
    paths = [str(path) for path in starters if (path / "tokenizer.json").is_file()]
    # Runs are of a higher rung, and named by string only.
    runs = (
        team.runs.filter(origin={})
        .order_by("-pk")
        .values_list("config__model__path", flat=True)
    )
    used = list(runs[:200])
    return list(dict.fromkeys([*used[:1], *paths, *used[1:]]))[:20]
