"""What a fork may not change, and what its changes mean."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import ValidationError

from dashboard.accounts.models import Team
from dashboard.accounts.templatetags.numbers import sig4
from dashboard.datasets.models import DatasetVersion
from dashboard.runs.config.errors import Problems
from dashboard.runs.config.fields import all_fields
from dashboard.runs.config.snapshot import rate_at
from dashboard.runs.launch.initial_values import Start
from dashboard.runs.models import Checkpoint, Run
from trainer.config import RunConfig, Stage, leaves, read_about

# What a checkpoint is made of. It is worth nothing to a run that has these otherwise.
FIXED = {
    path: reason
    for path, info in leaves(RunConfig)
    if (reason := read_about(info).get("fork"))
}


def check_fork(
    start: Start, texts: dict[str, str], model_path: str, problems: Problems
) -> None:
    """Refuse what the checkpoint cannot go on with, each beside its control."""
    assert start.run is not None
    path = str(start.run.config["model"]["path"])
    if model_path != path:
        _refuse(problems, "model", "model.path", path)
    for setting in (all_fields()[name] for name in FIXED if name != "model.path"):
        before = start.texts[setting.path]
        if not setting.is_same(texts[setting.path], before):
            _refuse(problems, setting.path, setting.path, setting.show(before))


def _refuse(problems: Problems, control: str, path: str, value: str) -> None:
    problems.add(
        control,
        f"A fork cannot change {path}: {FIXED[path]}. Set it to {value} again, or "
        "launch a new run.",
    )


def check_course(config: RunConfig, start: Start, problems: Problems) -> None:
    """The steps that are behind the checkpoint stay what they were."""
    checkpoint = _checkpoint(start)
    if config.optim.num_steps <= checkpoint.step:
        problems.add(
            "optim.num_steps",
            f"The checkpoint is of step {checkpoint.step:,}, so the run has to go "
            f"further; got {config.optim.num_steps:,} steps. Take more.",
        )
    begun, parents = (
        _begun(each, checkpoint.step) for each in (config, _parents_config(start))
    )
    if parents and begun != parents:
        told = ", ".join(f"{name} from step {first}" for name, first, _ in parents)
        problems.add(
            "phases",
            f"The phases that have begun by step {checkpoint.step:,} must begin where "
            f"they did, with the same names: {told or 'none'}.",
        )


def _begun(config: RunConfig | None, step: int) -> list[tuple[str, int, bool]]:
    """Phases by their beginnings; a later one's frozen start is in the checkpoint."""
    if config is None:
        return []
    stages = [stage for stage in config.stages if stage.first_step <= step]
    return [(stage.name, stage.first_step, _has_start(stage)) for stage in stages]


def _has_start(stage: Stage) -> bool:
    return stage.goes_on and stage.config.rollout.source == "start"


def _parents_config(start: Start) -> RunConfig | None:
    """None where an older release wrote it; then the form's own is all there is."""
    assert start.run is not None
    try:
        return RunConfig.model_validate(start.run.config)
    except ValidationError:
        return None


def describe_fork(
    config: RunConfig, dataset: DatasetVersion, start: Start
) -> Iterator[str]:
    """What follows from going on in the middle, in sentences."""
    checkpoint, parents = _checkpoint(start), _parents_config(start)
    assert start.run is not None
    first, last = checkpoint.step + 1, config.optim.num_steps
    steps = f"Steps {first:,} to {last:,}" if last > first else f"Step {first:,}"
    yield f"{steps} of {last:,} {'are' if last > first else 'is'} trained."
    rate = rate_at(config, first)
    before = None if parents is None else rate_at(parents, first)
    if rate is not None and before is not None and rate != before:
        yield (
            f"The learning rate at step {first:,} is {sig4(rate)}; in "
            f"{start.run.name} it was {sig4(before)}. A schedule runs over all "
            f"{last:,} steps, those of {start.run.name} included."
        )
    data = config.data.num_eval_rows, config.seed
    if dataset.pk != start.run.dataset_version_id:
        yield (
            f"Step {first:,} takes the rows that step {first:,} of any run on "
            f"{dataset} with this seed takes: the place in the data follows from the "
            "step, also where the rows are others. Held-out rows are drawn anew."
        )
    elif parents and data != (parents.data.num_eval_rows, parents.seed):
        yield (
            "The held-out prompts are drawn anew, so some of them were trained on "
            f"before step {first:,}."
        )


def _checkpoint(start: Start) -> Checkpoint:
    assert start.fork is not None, "no fork"
    return start.fork


# Names a person can say: two words, such as amber-otter.

# fmt: off
QUALITIES = (
    "amber", "ample", "azure", "bold", "brave", "breezy", "bright", "brisk", "calm",
    "candid", "cheery", "clever", "coral", "cosmic", "crisp", "curious", "dapper",
    "deft", "eager", "early", "earnest", "fair", "fleet", "fond", "frosty", "gentle",
    "gilded", "glad", "golden", "grand", "hardy", "hazel", "hearty", "honest", "humble",
    "ivory", "jolly", "keen", "kind", "lively", "lucid", "lucky", "mellow", "merry",
    "misty", "modest", "nimble", "noble", "opal", "patient", "placid", "plucky",
    "polite", "proud", "quick", "quiet", "rapid", "ready", "robust", "rosy", "royal",
    "sandy", "serene", "sharp", "silver", "smooth", "snowy", "sober", "steady",
    "sturdy", "sunny", "swift", "tidy", "tranquil", "upbeat", "velvet", "vivid",
    "warm", "wise", "witty", "zesty",
)
BEINGS = (
    "acorn", "alder", "aspen", "badger", "beacon", "beaver", "birch", "bison", "brook",
    "cedar", "cliff", "clover", "comet", "condor", "crane", "creek", "curlew", "delta",
    "dolphin", "dune", "eagle", "ember", "falcon", "fern", "finch", "fjord", "fox",
    "gecko", "glacier", "glade", "grove", "harbor", "hare", "harrier", "heron", "hill",
    "ibex", "island", "jay", "juniper", "kestrel", "kite", "lagoon", "lark", "lemur",
    "linden", "lynx", "magpie", "maple", "marmot", "marten", "meadow", "mesa", "moose",
    "moth", "newt", "oak", "orca", "osprey", "otter", "owl", "panda", "pebble",
    "pelican", "pine", "plover", "prairie", "puffin", "quail", "rabbit", "raven",
    "reed", "ridge", "river", "robin", "sable", "salmon", "seal", "sparrow", "spruce",
    "stork", "swallow", "swan", "tern", "thrush", "tide", "trout", "vale", "walnut",
    "willow", "wren", "yak",
)
# fmt: on


def propose_name(team: Team) -> str:
    """A name that no run of the team bears; the same one until a run is launched."""
    num_runs = Run.objects.filter(team=team).count()
    candidates = list(_names(seed=f"{team.pk}:{num_runs}"))
    taken = set(
        Run.objects.filter(team=team, name__in=candidates).values_list(
            "name", flat=True
        )
    )
    free = [name for name in candidates if name not in taken]
    return free[0] if free else f"{candidates[0]}-{num_runs + 1}"


def _names(*, seed: str, count: int = 20) -> Iterator[str]:
    chooser = random.Random(seed)  # noqa: S311  # a name, not a secret
    for _ in range(count):
        yield f"{chooser.choice(QUALITIES)}-{chooser.choice(BEINGS)}"
