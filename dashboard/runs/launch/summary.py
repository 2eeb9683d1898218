"""The estimate of a launch: amounts, warnings and hints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from dashboard.accounts.models import Team
from dashboard.accounts.templatetags.numbers import duration, num_bytes, si, sig4
from dashboard.datasets.models import DatasetRow
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.launch.checks import describe_fork
from dashboard.runs.launch.eval_sets import stored_leak
from dashboard.runs.launch.form import Launch, LaunchForm
from dashboard.runs.launch.initial_values import Start
from dashboard.runs.launch.memory import Memory, estimate_memory
from dashboard.runs.launch.row_limits import warn_of_characters, warn_of_lengths
from dashboard.runs.launch.verdict import warn_of_probe
from dashboard.runs.queue.estimates import Pace, past_paces
from dashboard.runs.queue.hosts import (
    Cluster,
    Needs,
    describe_lack,
    describe_missing,
    known_cluster,
    known_hosts,
    lack_on,
)
from trainer.config import PhaseConfig, RunConfig, needed_packages
from trainer.rewards.judge import limited_to
from trainer.rewards.rule import Sample
from trainer.rewards.sandbox.pool import asking_for
from trainer.rewards.scoring import row_errors
from trainer.rewards.spec import Recipe, needs_sandbox

ROWS_TRIED = 3
SECONDS_PER_ROW = 10.0
MANY_EPOCHS = 20

Phases = list[tuple[PhaseConfig, int]]  # with the steps that are left of each


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    title: str
    value: str
    how: str = ""


@dataclass(kw_only=True)
class Summary:
    amounts: list[Amount] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    warnings: tuple[str, ...] = ()  # to be confirmed before a launch
    hints: list[str] = field(default_factory=list)
    line: tuple[str, ...] = ()  # the estimate beside the Launch button


def summarize(form: LaunchForm) -> Summary:
    launch = form.check()
    summary = Summary()
    if launch is not None:
        paces = _paces(launch)
        summary.amounts = _amounts(launch, form.start, paces)
        sizes = [one.num_rows for one in launch.evaluation_sets]
        largest = max(sizes, default=0)
        cluster = form.choices.cluster
        summary.memory = estimate_memory(
            launch.config, largest_set=largest, cluster=cluster
        )
        summary.warnings = warn(launch)
        summary.hints = _hints(launch, form.start)
        ranks = Needs.of(launch.config.model_dump()).ranks
        lack = "" if ranks is None else lack_on(cluster, ranks)
        if lack and lack not in summary.warnings:
            summary.hints.append(lack)
        room = _cluster_room(launch, cluster)
        phases = _phases_left(launch.config, form.start)
        summary.line = tuple(_line(phases, paces, summary.memory, room))
    return summary


def _cluster_room(launch: Launch, cluster: Cluster | None) -> str:
    """Of a run on a cluster, whether it has the GPUs now."""
    ranks = Needs.of(launch.config.model_dump()).ranks
    if ranks is None:
        return ""
    room = cluster.room(ranks) if cluster else None
    return room.sentence.removesuffix(".") if room else "Cluster status unknown"


def _paces(launch: Launch) -> list[Pace]:
    """None of a run with several phases, whose steps take different times."""
    if launch.config.phases:
        return []
    return past_paces(_team_of(launch), launch.config)


def _phases_left(config: RunConfig, start: Start) -> Phases:
    """Phases with steps to train, and their number; a fork has trained some."""
    done = start.fork.step if start.fork else 0
    phases = [
        (phase, phase.last_step - max(done, phase.first_step - 1))
        for phase in config.phase_configs
    ]
    return [(phase, num_steps) for phase, num_steps in phases if num_steps > 0]


def _line(
    phases: Phases, paces: list[Pace], memory: Memory, room: str
) -> Iterator[str]:
    """What it waits for, time, memory and size, each in a few words."""
    steps = sum(num_steps for _, num_steps in phases)
    if not known_hosts():
        yield "No worker is running"
    if room:
        yield room
    if paces:
        pace = paces[0]
        where = f" on {pace.device}" if pace.device else ""
        yield f"About {duration(pace.step_seconds * steps)}{where}"
    else:
        yield "No time estimate yet"
    if memory.total:
        fit = memory.fits[0] if memory.fits else None
        of = f" of {num_bytes(fit.device.memory_bytes)}" if fit else ""
        yield f"{num_bytes(memory.total)}{of} memory"
    per_step = max(phase.config.completions_per_step for phase, _ in phases)
    yield f"{steps:,} steps × {per_step:,} completions"


def _amounts(launch: Launch, start: Start, paces: list[Pace]) -> list[Amount]:
    config = launch.config
    phases = _phases_left(config, start)
    done = start.fork.step if start.fork else 0
    return [
        *_per_step(phases),
        *_tokens(phases),
        *_times(config, paces, phases),
        _updates(phases),
        Amount(
            title="Total completions",
            value=si(
                sum(phase.config.completions_per_step * num for phase, num in phases)
            ),
        ),
        Amount(
            title="Epochs",
            value=sig4(float(f"{_epochs(launch, phases):.2g}")),
            how=f"{_num_train(launch):,} training rows",
        ),
        _evaluations(launch, done),
        _checkpoints(config, done),
    ]


def _per_step(phases: Phases) -> list[Amount]:
    """Of the longest phase; others may differ."""
    longest, _ = max(phases, key=lambda phase: phase[1])
    rollout, per_step = longest.config.rollout, longest.config.completions_per_step
    of_phase = f" in {longest.name}" if longest.name else ""
    refills = _refills(longest.config)
    amounts = [
        Amount(
            title=f"Completions per step{of_phase}",
            value=f"{per_step:,}",
            how=f"{rollout.prompts_per_step:,} prompts × {rollout.group_size:,}",
        ),
        Amount(
            title=f"Tokens sampled per step{of_phase}",
            value=f"up to {si(per_step * rollout.max_new_tokens * (1 + refills))}",
            how=f"{per_step:,} completions × {rollout.max_new_tokens:,}"
            + (f", and up to {refills:,} refills" if refills else ""),
        ),
    ]
    return amounts if rollout.source != "dataset" else amounts[:1]


def _tokens(phases: Phases) -> list[Amount]:
    """The maximum in total; completions of the dataset are not sampled."""
    total = sum(
        phase.config.completions_per_step
        * phase.config.rollout.max_new_tokens
        * (1 + _refills(phase.config))
        * num_steps
        for phase, num_steps in phases
        if phase.config.rollout.source != "dataset"
    )
    how = Amount(title="Total tokens sampled", value=f"up to {si(total)}")
    return [how] if total else []


def _refills(config: RunConfig) -> int:
    rollout = config.rollout
    return rollout.max_refills if rollout.dynamic_sampling == "refill" else 0


def _times(config: RunConfig, paces: list[Pace], phases: Phases) -> list[Amount]:
    """Without evaluations and checkpoints."""
    if config.phases:
        how = "no estimate for runs with several phases"
        return [Amount(title="Time", value="unknown", how=how)]
    if not paces:
        how = "no similar run yet"
        return [Amount(title="Time per step", value="unknown", how=how)]
    return [_time(pace, sum(num for _, num in phases)) for pace in paces]


def _time(pace: Pace, num_steps: int) -> Amount:
    several = pace.num_runs > 1
    of_runs = f"{pace.num_runs} similar runs" if several else "1 similar run"
    if pace.num_ranks:
        of_runs += (
            f" with {pace.num_ranks} rank{'' if pace.num_ranks == 1 else 's'}, "
            "assuming time falls in proportion to the ranks"
        )
    total = duration(pace.step_seconds * num_steps)
    return Amount(
        title=f"Time per step on {pace.device}" if pace.device else "Time per step",
        value=duration(pace.step_seconds),
        how=f"{total} in total, from {of_runs}",
    )


def _updates(phases: Phases) -> Amount:
    total = sum(
        num_steps
        * phase.config.optim.updates_per_batch
        * phase.config.optim.minibatches
        for phase, num_steps in phases
    )
    if len(phases) > 1:
        how = f"over {len(phases)} phases"
        return Amount(title="Updates", value=f"{total:,}", how=how)
    ((phase, num_steps),) = phases
    optim = phase.config.optim
    factors = [f"{num_steps:,} steps", f"{optim.updates_per_batch:,}"]
    if optim.minibatches > 1:
        factors.append(f"{optim.minibatches:,} minibatches")
    return Amount(title="Updates", value=f"{total:,}", how=" × ".join(factors))


def _num_train(launch: Launch) -> int:
    return launch.dataset_version.num_rows - launch.config.data.num_eval_rows


def _epochs(launch: Launch, phases: Phases) -> float:
    prompts = sum(num * phase.config.rollout.prompts_per_step for phase, num in phases)
    return prompts / _num_train(launch)


def _evaluations(launch: Launch, done: int) -> Amount:
    config, sets = launch.config, launch.evaluation_sets
    every, rows = config.evaluation.every_steps, config.data.num_eval_rows
    num_sets = len(sets) + bool(rows)
    rows += sum(one.num_rows for one in sets)
    if not every or not rows:
        return Amount(title="Evaluations", value="none")
    # Before the first step, at each interval, and after the last.
    count = math.ceil(config.optim.num_steps / every) - done // every + (done == 0)
    samples = rows * config.evaluation.samples_per_prompt
    how = f"{samples:,} completions each"
    if num_sets > 1:
        how += f", {num_sets} sets"
    return Amount(title="Evaluations", value=f"{count:,}", how=how)


def _checkpoints(config: RunConfig, done: int) -> Amount:
    every = config.checkpoint.every_steps
    count = math.ceil(config.optim.num_steps / every) - done // every if every else 1
    kept = min(count, config.checkpoint.keep_last)
    return Amount(title="Checkpoints", value=f"{count:,}", how=f"newest {kept:,} kept")


def _hints(launch: Launch, start: Start) -> list[str]:
    """Notes on likely mistakes; they need no confirmation."""
    config = launch.config
    hints: list[str] = []
    if start.fork is not None:
        hints += describe_fork(config, launch.dataset_version, start)
    if not known_hosts():
        hints.append(f"The run will wait. {describe_lack(Needs(), [])}")
    epochs = _epochs(launch, _phases_left(config, start))
    if epochs > MANY_EPOCHS:
        hints.append(
            f"The run repeats each prompt about {epochs:,.0f} times, so the "
            "model may memorise answers. Use fewer steps or more rows."
        )
    has_rows = config.data.num_eval_rows or config.evaluation.sets
    if not has_rows or not config.evaluation.every_steps:
        hints.append(
            "The run has no evaluation, so you cannot tell learning from memorising. "
            "Hold out some prompts and set an evaluation interval."
        )
    return hints + [
        f"{one.name}: {leak.sentence}"
        for one in launch.evaluation_sets
        if (leak := stored_leak(one.version, launch.dataset_version)) and leak.num_rows
    ]


def warn(launch: Launch) -> tuple[str, ...]:
    """Problems that would waste the run; the user has to confirm them."""
    version = launch.recipe_version
    # A busy sandbox may be free in a moment: its answer is not cached.
    is_kept = not needs_sandbox(Recipe.model_validate(version.spec))
    find = rules_without_score if is_kept else rules_without_score.__wrapped__
    warnings = []
    needs, hosts = Needs.of(launch.config.model_dump()), known_hosts()
    if hosts and (lack := describe_lack(needs, hosts, or_else="choose")):
        warnings.append(f"No worker can start this run. {lack}")
    warnings += describe_missing(needed_packages(launch.config), needs, hosts)
    warnings += warn_of_cluster(launch)
    warnings += [
        sentence
        for sentence in (
            warn_of_lengths(launch.config, launch.dataset_version),
            warn_of_characters(launch.config.model.path, launch.dataset_version),
            warn_of_probe(launch),
        )
        if sentence
    ]
    with asking_for(f"team {version.recipe.team_id}"):
        for rule, reason in find(version.pk, launch.dataset_version.pk):
            warnings.append(f"Rule {rule} cannot score these rows: {reason}")
        others = {one.version: None for one in launch.evaluation_sets}
        others.pop(launch.dataset_version, None)
        for other in others:
            for rule, reason in find(version.pk, other.pk):
                warnings.append(f"Rule {rule} cannot score {other}: {reason}")
    return tuple(warnings)


def warn_of_cluster(launch: Launch) -> list[str]:
    """Of a run that its team's cluster can never take, as far as is known."""
    ranks = Needs.of(launch.config.model_dump()).ranks
    if ranks is None:
        return []
    cluster = known_cluster(_team_of(launch))
    room = cluster.room(ranks) if cluster else None
    lack = lack_on(cluster, ranks)
    return [lack] if lack and not (room and room.is_possible) else []


def _team_of(launch: Launch) -> Team:
    return launch.dataset_version.dataset.team


@lru_cache(maxsize=256)  # versions never change, so neither does the answer
def rules_without_score(recipe_pk: int, dataset_pk: int) -> tuple[tuple[str, str], ...]:
    """Each rule that cannot score the first rows, and the reason."""
    spec = RecipeVersion.objects.values_list("spec", flat=True).get(pk=recipe_pk)
    recipe = Recipe.model_validate(spec)
    rows = DatasetRow.objects.filter(version=dataset_pk).order_by("position")
    found: dict[str, str] = {}
    for row in rows[:ROWS_TRIED]:
        answer = next(filter(None, row.answers), "1")
        completion = f"<think>\n</think>\n<answer>{answer}</answer>"
        prompt = row.prompt_value
        sample = Sample(
            row.prompt,
            completion,
            row.answer_value,
            row.columns,
            messages=() if isinstance(prompt, str) else prompt,
            is_chat=not isinstance(prompt, str),
        )
        with limited_to(SECONDS_PER_ROW):
            errors = row_errors(recipe, sample)
        for rule, reason in errors.items():
            found.setdefault(rule, reason)
    return tuple(found.items())
