"""Lookups of a run: by its team, its lineage, its files, what its trainers reported."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.db.models import BooleanField, Q, QuerySet, TextField
from django.db.models.expressions import RawSQL
from django.http import Http404

from dashboard.accounts.models import Team
from dashboard.project.database import FixedQuery
from dashboard.project.errors import or_404
from dashboard.runs.models import (
    EvaluationSet,
    Run,
    SettingChange,
    TeamPreset,
    trained_seconds,
)
from trainer.config import CHANGEABLE, RunConfig
from trainer.rewards.sandbox.levels import NAMES

ROWS = "rows.jsonl"  # the dataset version as it was at launch

MAX_RUNS = 500
MAX_DEPTH = 50
SHOWN = ("id", "name", "state", "last_step", "num_steps", "fork_step", "created_at")
PARENTS = ("forked_from_id", "cloned_from_id")
T = TypeVar("T")

# What each page of a run names. Parents, a sweep and those who locked it are read where
# there are any: planning a join of all of them takes longer than the page.
RELATED = ("owner", "dataset_version__dataset", "recipe_version__recipe")
# What can be long, and few pages read.
UNREAD = (
    "dataset_version__left_out",
    "dataset_version__mapping",
    "dataset_version__source",
    "recipe_version__spec",
)


@dataclass(frozen=True, slots=True)
class Keyed(Generic[T]):
    """An argument of a cached function, which is equal where its key is."""

    key: tuple[Hashable, ...]
    value: T = field(compare=False)


def as_of(run: Run, *moment: Hashable) -> Keyed[Run]:
    """Key the run by an event or a step, for answers that hold until the next one."""
    return Keyed((run.pk, run.attempt, *moment), run)


def if_ended(run: Run, *others: Hashable) -> Hashable:
    """Key what pages show of an ended run, whose rows change together with its own row;
    None for a run that goes on. Of a run that `get_run` has read.
    """
    return (vars(run)["row_version"], *others) if run.has_ended else None


@dataclass(slots=True)
class Member:
    run: Run
    children: list[Member] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Lineage:
    root: Member
    num_runs: int
    is_whole: bool  # False: more runs exist than are shown


def find_lineage(run: Run) -> Lineage:
    """Find the tree that a run belongs to; a query for each generation."""
    root = Member(_first_ancestor(run))
    ids, generation, is_whole = {root.run.id}, [root], True
    for _ in range(MAX_DEPTH):
        parents = {member.run.id: member for member in generation}
        made = list(_children_of(parents)[: MAX_RUNS - len(ids) + 1])
        if len(ids) + len(made) > MAX_RUNS:
            made, is_whole = made[: MAX_RUNS - len(ids)], False
        generation = []
        for run_ in made:
            if run_.id in ids:
                continue
            ids.add(run_.id)
            member = Member(run_)
            parents[_parent_of(run_) or 0].children.append(member)
            generation.append(member)
        if not generation or not is_whole:
            break
    return Lineage(root, len(ids), is_whole)


def list_children(run: Run) -> list[Run]:
    """List its forks and clones, newest first; one query, or none where it is known to
    have none.
    """
    if getattr(run, "has_children", True) is False:
        return []
    return list(_children_of([run.id]).order_by("-id")[:MAX_RUNS])


def list_ancestors(run: Run) -> Iterator[tuple[Run, int]]:
    """List the runs that a fork continues, nearest first, each up to a step."""
    step = run.fork_step
    for _ in range(MAX_DEPTH):
        if step is None or run.forked_from is None:
            return
        run = run.forked_from
        yield run, step
        step = None if run.fork_step is None else min(step, run.fork_step)


def _children_of(ids: Iterable[int]) -> QuerySet[Run]:
    ids = list(ids)
    forks = Q(forked_from__in=ids)
    clones = Q(cloned_from__in=ids, forked_from=None)
    return Run.objects.filter(forks | clones).only(*SHOWN, *PARENTS).order_by("id")


def _parent_of(run: Run) -> int | None:
    return run.forked_from_id or run.cloned_from_id


def _first_ancestor(run: Run) -> Run:
    for _ in range(MAX_DEPTH):
        parent = _parent_of(run)
        if parent is None:
            break
        run = Run.objects.only(*SHOWN, *PARENTS).get(id=parent)
    return run


def eval_rows(name: str) -> str:
    """Return the file name of an evaluation set in the run's folder."""
    return f"eval-{name}.jsonl"


def pass_rates_file(run_id: int) -> str:
    """Return the name of the file with a run's pass rates, in another run's folder."""
    return f"pass-rates-run-{run_id}.jsonl"


def find_pass_rates(name: str, *, team_id: int) -> Run | None:
    """Find the team's run whose pass rates a file of this name has; one query."""
    match = re.fullmatch(r"pass-rates-run-([1-9][0-9]{0,17})\.jsonl", name)
    runs = Run.objects.kept().filter(team_id=team_id)
    return runs.filter(pk=int(match[1])).first() if match else None


@dataclass(frozen=True, slots=True)
class AttemptDirectory:
    """The files of one attempt."""

    path: Path

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def changes(self) -> Path:
        """Setting changes that its trainer reads between steps."""
        return self.path / "changes.json"

    @property
    def pulse(self) -> Path:
        """Touched while its trainer moves: trainer/host.py."""
        return self.path / "pulse"

    @property
    def trainer_log(self) -> Path:
        return self.path / "trainer.log"

    @property
    def trainer_times(self) -> Path:
        """When its lines were written: training/log_reading.py."""
        return self.path / "trainer.times"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def rank_logs(self) -> dict[int, Path]:
        """Output of each process of a run on a cluster, by rank."""
        logs = {}
        for path in self.path.glob("rank-*.log"):
            number = path.stem.removeprefix("rank-")
            if number.isdecimal() and number.isascii():
                logs[int(number)] = path
        return dict(sorted(logs.items()))


@dataclass(frozen=True, slots=True)
class RunDirectory:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "run.json"

    @property
    def rows(self) -> Path:
        return self.path / ROWS

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def ray_storage(self) -> Path:
        """Has the name of its folder in COHORT_RAY_STORAGE: parallel/ray_cluster.py."""
        return self.path / "ray-storage"

    @property
    def attempts(self) -> Path:
        """The folder with one directory for each attempt, by number."""
        return self.path / "epochs"  # as such folders have always been named

    def attempt(self, number: int) -> AttemptDirectory:
        return AttemptDirectory(self.attempts / str(number))

    def attempt_numbers(self) -> list[int]:
        """Attempts that left a directory, oldest first."""
        if not self.attempts.is_dir():
            return []
        return sorted(int(p.name) for p in self.attempts.iterdir() if p.name.isdigit())


def run_directory(run_id: int) -> RunDirectory:
    return RunDirectory(Path(settings.COHORT_DATA) / "runs" / str(run_id))


def get_run(team: Team, run_id: int) -> Run:
    """Find the team's run with all that its pages name; one query, or 404."""
    run = get_any_run(team, run_id)
    if run.trashed_at is not None:
        raise Http404(
            f"{run.name} (#{run.pk}) is in the trash. Restore it on its page, "
            f"/{team.slug}/runs/{run.pk}/."
        )
    return run


def get_any_run(team: Team, run_id: int) -> Run:
    """Find a run, in the trash or not; one query, or 404."""
    run = or_404(_any_run.first(team.pk, run_id), "Run not found.")
    run.team = team
    return run


@FixedQuery
def _any_run(team: int, run_id: int) -> QuerySet[Run]:
    runs = Run.objects.select_related(*RELATED).defer(*UNREAD)
    made = RawSQL(
        """EXISTS (
            SELECT FROM runs_run AS made WHERE made.forked_from_id = runs_run.id
            OR made.cloned_from_id = runs_run.id)""",
        [],
        BooleanField(),
    )
    # Each UPDATE writes another version of the row, in another place.
    row_version = RawSQL("runs_run.xmin::text || runs_run.ctid::text", [], TextField())
    return runs.annotate(
        has_children=made, row_version=row_version, trained=trained_seconds()
    ).filter(team=team, id=run_id)


def settings_of(run: Run) -> RunConfig | None:
    """Return None for an imported run: no one knows them.

    During an upgrade, a web process of the release before shows runs that have settings
    which it does not know.
    """
    if run.is_imported:
        return None
    return settings_in(run.config)


def settings_in(config: Mapping[str, Any]) -> RunConfig:
    """Read settings without those, also of phases, that this release does not know."""
    phases = [
        {
            **phase,
            "changes": {
                part: {
                    name: value
                    for name, value in values.items()
                    if name in CHANGEABLE[part].model_fields
                }
                for part, values in (phase.get("changes") or {}).items()
                if part in CHANGEABLE
            },
        }
        for phase in config.get("phases") or ()
    ]
    return RunConfig.model_validate(
        {**config, "phases": phases} if phases else config, extra="ignore"
    )


def list_evaluation_sets(run: Run) -> list[EvaluationSet]:
    """List them in the order in which they were chosen; one query."""
    return list(
        run.evaluation_sets.select_related("dataset_version__dataset").order_by("pk")
    )


def list_changes(run: Run) -> list[SettingChange]:
    """List changes of the settings, the newest first; one query."""
    return list(run.changes.select_related("actor").order_by("-number"))


def where_it_runs(run: Run) -> tuple[str, str]:
    """Device and sampling engine that the newest attempt reported; one query.

    Empty until the trainer starts, and for trainers that do not report them.
    """
    reported = (
        run.events.filter(type__in=("run_started", "run_resumed"))
        .order_by("-seq")
        .values_list("body__device", "body__engine")
        .first()
    )
    device, engine = reported or (None, None)
    return device or "", engine or ""


def get_team_preset(team: Team, pk: int) -> TeamPreset:
    """Make one query, or answer 404."""
    presets = TeamPreset.objects.select_related("recipe_version", "saved_by")
    return or_404(presets.filter(team=team, pk=pk).first(), "Preset not found.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The sandbox of reward code from a step on.

    >>> Confinement(level="A", name="bubblewrap", first_step=1)
    """

    level: str
    name: str
    first_step: int


def confinements_of(run: Run) -> list[Confinement]:
    """List the first, and one for each change, oldest first; one query.

    Empty until the trainer starts, and if no rule runs code.
    """
    started = run.events.filter(type__in=("run_started", "run_resumed")).order_by("seq")
    confinements = [
        Confinement(
            level=(level := words.removeprefix("level ")),
            name=next(
                (name for confinement, name in NAMES.items() if confinement == level),
                "",
            ),
            first_step=step + 1,
        )
        for step, words in started.values_list("step", "body__versions__sandbox")
        if words
    ]
    changes = [
        later
        for earlier, later in pairwise(confinements)
        if later.level != earlier.level
    ]
    return [*confinements[:1], *changes]
