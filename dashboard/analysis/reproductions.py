"""The team's runs of reproductions: their state, scores and verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from django.conf import settings as django_settings
from django.db import transaction
from django.db.models import Q
from pydantic import ValidationError

from dashboard.accounts.models import Team, User
from dashboard.analysis.statistics import mean_interval
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import list_versions
from dashboard.rewards.services import free_name, save_recipe_version
from dashboard.runs.launch.draft import choices_of
from dashboard.runs.launch.starts import REPRODUCTION
from dashboard.runs.models import ENDED, MetricSummary, Run, RunEvent, RunState
from dashboard.supervision.starter import prepare_rows
from trainer.config import RunConfig
from trainer.reproductions.reproduction import (
    FREE,
    NUM_SEEDS,
    TEST_SET,
    Reproduction,
    load_reproduction,
    reproduction_names,
)

MAX_RUNS = 500  # the newest that the board reads


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A score of the finished seeds."""

    name: str
    values: list[float]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's, 95%; fewer seeds than a verdict needs have none."""
        if len(self.values) < NUM_SEEDS:
            return None
        return mean_interval(np.array(self.values, dtype=np.float64)[:, None]).interval


@dataclass(kw_only=True, slots=True)
class Seeds:
    """Runs of a reproduction with the same changes, the newest of each seed."""

    reproduction: Reproduction
    runs: dict[int, Run] = field(default_factory=dict)  # by seed
    changes: list[str] = field(default_factory=list)  # settings, by path
    scores: list[Score] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)  # device, engine, versions
    num_others: int = 0  # finished runs with other changes
    missing: list[str] = field(default_factory=list)  # splits that are not imported

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs.values() if run.state == RunState.FINISHED]

    @property
    def is_exact(self) -> bool:
        return FREE.issuperset(self.changes)

    @property
    def state(self) -> str:
        num = len(self.finished)
        if num < len(self.runs):
            return "running"
        return "done" if num >= NUM_SEEDS else "few" if num else "none"

    @property
    def state_text(self) -> str:
        num, states = len(self.finished), {run.state for run in self.runs.values()}
        word = "paused" if states <= {RunState.PAUSED, RunState.FINISHED} else "running"
        return {
            "none": "not run here",
            "running": f"{word}, {num} of {len(self.runs)} seeds finished",
            "few": f"{num} of {NUM_SEEDS} seeds",
            "done": f"done, {num} seeds",
        }[self.state]

    @property
    def verdict(self) -> str:
        """Our mean, below or above the published number, or that within its interval.

        Empty without a number, or with fewer seeds than a verdict needs.
        """
        intervals = {score.name: score.interval for score in self.scores}
        for published in self.reproduction.published:
            interval = intervals.get(published.score)
            if self.state == "done" and interval and published.value is not None:
                low, high = interval
                is_below, is_above = high < published.value, low > published.value
                return "below" if is_below else "above" if is_above else "within"
        return ""


def read_board(team: Team) -> list[Seeds]:
    """Describe all reproductions by four queries.

    Those with runs come first, then those that any CPU can train: their rows come with
    Cohort.
    """
    reproductions = [load_reproduction(name) for name in reproduction_names()]
    runs, imported = list(_read_runs(team, reproductions)), _imported_splits(team)
    board = []
    for each in reproductions:
        groups = _group(each, runs) or [Seeds(reproduction=each)]
        seeds = max(groups, key=lambda group: (group.is_exact, len(group.runs)))
        seeds.num_others = sum(len(g.finished) for g in groups if g is not seeds)
        seeds.missing = [
            split
            for split in each.splits.values()
            if (each.dataset, split) not in imported
        ]
        board.append(seeds)
    _measure(board)
    return sorted(
        board, key=lambda each: (each.state == "none", not each.reproduction.starter)
    )


def _read_runs(
    team: Team, reproductions: Iterable[Reproduction]
) -> Iterator[tuple[Run, RunConfig]]:
    """Yield runs that may be of reproductions, finished or going on, newest first."""
    # Those trained here, and those that were imported or reported.
    prefixes = "config__model__path", "config__settings__model__path"
    has_model = Q()
    for each in reproductions:
        for prefix, ending in product(prefixes, each.model_endings):
            has_model |= Q(**{f"{prefix}__endswith": ending})
    runs = (
        Run.objects.kept()
        .filter(has_model, team=team)
        .exclude(state__in=set(ENDED) - {RunState.FINISHED})
        .select_related("dataset_version")
        .order_by("-pk")
    )
    for run in runs[:MAX_RUNS]:
        settings = run.config.get("settings") if run.is_imported else run.config
        with suppress(ValidationError):  # of an older version, or of another trainer
            yield run, RunConfig.model_validate(settings)


def _group(each: Reproduction, runs: Iterable[tuple[Run, RunConfig]]) -> list[Seeds]:
    """Group a reproduction's runs by the changes that matter."""
    groups: dict[tuple[str, ...], Seeds] = {}
    for run, config in runs:
        changes = each.find_changes(config)
        if changes is None or not _has_rows(each, run):
            continue
        mattering = tuple(path for path in changes if path not in FREE)
        seeds = groups.setdefault(mattering, Seeds(reproduction=each))
        if config.seed not in seeds.runs:
            seeds.runs[config.seed] = run
            seeds.changes += [path for path in changes if path not in seeds.changes]
    for seeds in groups.values():
        seeds.runs = dict(sorted(seeds.runs.items()))
    return list(groups.values())


def _has_rows(each: Reproduction, run: Run) -> bool:
    """Return whether its rows may be the reproduction's: none are known to differ."""
    source = run.dataset_version.source if run.dataset_version else {}
    if source.get("kind") == "hub":
        split = source["dataset"], source["part"]
        return split == (each.dataset, each.splits.get("train"))
    return source.get("kind") != "starter" or _is_starter(source, each.starter)


def _is_starter(source: dict[str, Any], starter: str) -> bool:
    is_one = source.get("kind") == "starter"
    return is_one and source.get("starter", "countdown") == starter


def _measure(sets: Sequence[Seeds]) -> None:
    """Read the scores of finished runs, and where they ran."""
    runs = [run.pk for seeds in sets for run in seeds.finished]
    metrics = {name for seeds in sets for name in seeds.reproduction.scores.values()}
    summaries = MetricSummary.objects.filter(run__in=runs, name__in=metrics)
    last = {(s.run_id, s.name): s.last for s in summaries}
    started = RunEvent.objects.filter(run__in=runs, type="run_started").values_list(
        "run", "body__device", "body__engine", "body__versions"
    )
    places = {run: (device, engine, v or {}) for run, device, engine, v in started}
    for seeds in sets:
        for name, metric in seeds.reproduction.scores.items():
            values = [last.get((run.pk, metric)) for run in seeds.finished]
            known = [value for value in values if value is not None]
            if known:
                seeds.scores.append(Score(name=name, values=known))
        for run in seeds.finished:
            place: Any = places.get(run.pk) or run.source.get("place") or ("", "", {})
            seeds.facts += [
                fact for fact in _describe_place(*place) if fact not in seeds.facts
            ]


def _describe_place(device: str, engine: str, versions: dict[str, str]) -> list[str]:
    named = [
        f"{name} {versions[name]}" for name in ("cohort", "torch") if name in versions
    ]
    return [fact for fact in (device, engine, *named) if fact]


def _imported_splits(team: Team) -> dict[tuple[str, str], DatasetVersion]:
    """Find the newest version of each split of a hub's dataset; one query."""
    versions = list_versions(team).filter(source__kind="hub").order_by("pk")
    return {(v.source["dataset"], v.source["part"]): v for v in versions}


@transaction.atomic
def prepare_launch(
    reproduction: Reproduction, *, team: Team, user: User
) -> dict[str, str]:
    """Return what New run begins with: settings, reward, rows, model and seeds.

    The reward is saved, and a starter's rows are, unless the team has them.
    """
    Team.objects.select_for_update().get(pk=team.pk)  # two clicks make one of each
    spec = reproduction.config().model_dump(mode="json")["reward"]["recipe"]
    recipe = choices_of(team).find_same_recipe(spec) or save_recipe_version(
        team=team,
        name=free_name(team, reproduction.title[:60]),
        recipe=reproduction.settings.recipe,
        user=user,
        description=f"The reward of the reproduction {reproduction.name}.",
    )
    query = {
        "preset": f"{REPRODUCTION}{reproduction.name}",
        "name": reproduction.name,
        "recipe": str(recipe.pk),
        "sweep-1-path": "seed",
        "sweep-1-values": f"0..{NUM_SEEDS - 1}",
        "model": _find_model(reproduction),
    }
    if reproduction.starter:
        starters = list_versions(team).filter(source__kind="starter").order_by("-pk")
        own = (v for v in starters if _is_starter(v.source, reproduction.starter))
        version = next(own, None) or prepare_rows(team, user, reproduction.starter)
        return query | {"dataset": str(version.pk)}
    imported = _imported_splits(team)
    for control, split in (("dataset", "train"), ("eval-1-dataset", TEST_SET)):
        key = (reproduction.dataset, reproduction.splits.get(split, ""))
        if key in imported:
            query[control] = str(imported[key].pk)
            if split == TEST_SET:
                query["eval-1-name"] = TEST_SET
    return query


def _find_model(reproduction: Reproduction) -> str:
    """Return the folder of a starter model that is here, else the hub's name."""
    starter = django_settings.COHORT_DATA / "starter" / reproduction.model_folder
    is_here = not reproduction.model or (starter / "model").exists()
    return str(starter / "model") if is_here else reproduction.model
