"""What a rescoring would take, from a few of its completions scored now."""

from __future__ import annotations

from dataclasses import dataclass, field

from dashboard.rescoring.scoring import Refused, rows_of, samples_of
from dashboard.rescoring.selection import Selection
from dashboard.rescoring.settings import StepSettings, asking_rules
from dashboard.rewards.trial import try_groups
from dashboard.runs.models import Run
from dashboard.samples.models import Group
from trainer.rewards.rule import Sample
from trainer.rewards.spec import Recipe

NUM_GROUPS = 2
NUM_COMPLETIONS = 8  # of a group
MAX_SECONDS = 2.0


@dataclass(slots=True)
class Estimate:
    """`seconds`: of scoring alone, without what judges take; None: not known."""

    seconds: float | None = None
    num_tried: int = 0
    num_calls: int = 0  # of judges
    judges: list[str] = field(default_factory=list)  # rules that ask them
    problems: list[str] = field(default_factory=list)


def make_estimate(run: Run, selection: Selection, settings: StepSettings) -> Estimate:
    """Score some of the first step's completions, for some seconds. Four queries."""
    found = Estimate()
    if not selection.steps:
        return found
    step = selection.steps[0]
    config = settings.at(step)
    recipe = config.reward.recipe
    found.judges = asking_rules(recipe)
    found.num_calls = len(found.judges) * selection.num_completions
    groups = list(
        Group.objects.current()
        .filter(run=run, step=step)
        .order_by("prompt_index")
        .prefetch_related("packed_completions")[:NUM_GROUPS]
    )
    rows = rows_of(run, groups)
    try:
        samples = [
            samples_of(
                run,
                group,
                rows.get(group.prompt_index),
                group.completions[:NUM_COMPLETIONS],
                config,
            )
            for group in groups
        ]
    except (Refused, ValueError) as error:
        found.problems.append(str(error))
        return found
    _try(found, run, recipe, samples, selection.num_completions)
    return found


def _try(
    found: Estimate,
    run: Run,
    recipe: Recipe,
    samples: list[list[Sample]],
    num_completions: int,
) -> None:
    tried = try_groups(
        recipe, samples, seconds=MAX_SECONDS, owner=f"team {run.team_id}"
    )
    trials = [trial for group in tried for trial in group if trial.score]
    found.num_tried = len(trials)
    if trials:
        mean = sum(trial.seconds for trial in trials) / len(trials)
        found.seconds = mean * num_completions
    said: dict[str, str] = {}
    for trial in trials:
        assert trial.score is not None
        for rule in trial.score.failed:
            if rule not in found.judges:  # no judge was asked yet
                said.setdefault(rule, trial.score.errors[rule])
    found.problems += [f"Rule “{rule}”: {error}" for rule, error in said.items()]
