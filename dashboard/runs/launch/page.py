"""Describes a draft for the launch page: its fields, and the estimate of its run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from dashboard.accounts.models import Team
from dashboard.accounts.templatetags.numbers import (
    duration,
    num_bytes,
    si,
    sig3,
)
from dashboard.datasets.models import DatasetRow
from dashboard.project.schema_forms import BoundField
from dashboard.rewards.checks import EPISODE_RULES
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.recipe_text import recipe_sentence
from dashboard.rewards.trial import as_sample, sandbox_here
from dashboard.runs.config.fields import (
    ConfigPart,
    advanced_parts,
    all_fields,
    find_unused,
    main_fields,
    needed_columns,
    recipe_facts,
    unused_table,
)
from dashboard.runs.launch.base_models import read_chat_template
from dashboard.runs.launch.draft import Choices, LaunchDraft
from dashboard.runs.launch.eval_sets import stored_leak
from dashboard.runs.launch.fit import (
    Memory,
    estimate_memory,
    warn_of_characters,
    warn_of_lengths,
)
from dashboard.runs.launch.launching import Launch, check_draft, describe_fork
from dashboard.runs.launch.starts import (
    RECOMMENDED,
    Start,
    offer_presets,
    offer_reproductions,
)
from dashboard.runs.launch.verdict import warn_of_probe
from dashboard.runs.queue.estimates import Pace, past_paces, shape_of
from dashboard.runs.queue.hosts import (
    Needs,
    describe_lack,
    describe_missing,
    known_cluster,
    known_hosts,
    lack_on,
)
from dashboard.runs.queue.messages import rough_duration, title_start
from dashboard.runs.queue.order import start_of_new
from trainer.config import PhaseConfig, RunConfig, needed_packages
from trainer.rewards.judge import limited_to
from trainer.rewards.sandbox.pool import asking_for
from trainer.rewards.scoring import row_errors
from trainer.rewards.spec import Recipe, needs_sandbox

# Beside the size of a run where there is a cluster; else only the last, among all.
WHERE = ("distributed.where", "distributed.num_nodes", "distributed.num_processes")
ROWS_TRIED = 3
SECONDS_PER_ROW = 10.0
MANY_EPOCHS = 20

Phases = list[tuple[PhaseConfig, int]]  # with the steps that are left of each


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundSetting(BoundField):
    """A setting with its value in the form."""

    start_text: str  # the initial value
    start_name: str  # "": Cohort's defaults
    unused_reason: str  # why it has no effect; "": it has one
    fixed_reason: str = ""  # why a fork cannot change it

    @property
    def differs_from_start(self) -> bool:
        return not self.field.is_same(self.text, self.start_text)

    @property
    def mark(self) -> str:
        """The origin of the value. launch.js writes the same while typing."""
        if not self.start_name:
            return f"default {self.default_shown}" if self.is_changed else ""
        if self.start_name == RECOMMENDED:
            return f"recommended {self.start_shown}" if self.differs_from_start else ""
        if self.differs_from_start:
            return f"changed from {self.start_name}: {self.start_shown}"
        if self.is_changed:
            return f"from {self.start_name}, default {self.default_shown}"
        return ""

    @property
    def default_shown(self) -> str:
        return self.field.show(self.field.default_text)

    @property
    def start_shown(self) -> str:
        return self.field.show(self.start_text)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundGroup:
    title: str
    fields: list[BoundSetting]


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundPart:
    part: ConfigPart
    groups: list[BoundGroup]

    @property
    def fields(self) -> list[BoundSetting]:
        return [bound for group in self.groups for bound in group.fields]

    @property
    def num_changed(self) -> int:
        """Settings changed from their initial values."""
        return sum(bound.differs_from_start for bound in self.fields)

    @property
    def num_set(self) -> int:
        """Settings that the start changed from the defaults."""
        return sum(
            bound.is_changed and not bound.differs_from_start for bound in self.fields
        )

    @property
    def is_open(self) -> bool:
        first = self.fields[0]
        is_chosen = first.field.path == "environment.kind" and first.text != "none"
        return is_chosen or any(bound.errors for bound in self.fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """The form's settings with their values."""

    main: list[BoundSetting]
    hidden: list[BoundSetting]  # a cluster's, which the form carries without a cluster
    environment: BoundPart
    parts: list[BoundPart]
    step_recipe_unused: str  # why the reward of steps has no effect

    @property
    def num_main_changed(self) -> int:
        return sum(bound.differs_from_start for bound in self.main)


def describe_fields(draft: LaunchDraft) -> Fields:
    recipe = draft.recipe_version
    facts = recipe_facts(recipe.spec) if recipe else {}
    # A phase may give any setting an effect.
    unused = {} if draft.phases else find_unused(draft.texts, facts)

    def bind(path: str) -> BoundSetting:
        setting = all_fields()[path]
        return BoundSetting(
            field=setting,
            text=draft.texts[path],
            start_text=draft.start.texts[path],
            start_name=draft.start.name,
            unused_reason=unused.get(path, ""),
            errors=draft.problems.by_field.get(path, []),
            fixed_reason=setting.about.get("fork", "") if draft.start.fork else "",
        )

    # With a cluster, and for settings that ask for one.
    shows_where = draft.choices.cluster or draft.texts[WHERE[0]] != "machine"
    main = [field.path for field in main_fields()]
    elsewhere = WHERE if shows_where else WHERE[:2]
    environment, *parts = (
        BoundPart(
            part=part,
            groups=[
                BoundGroup(
                    title=group.title,
                    fields=[
                        bind(field.path)
                        for field in group.fields
                        if field.path not in elsewhere
                    ],
                )
                for group in part.groups
            ],
        )
        for part in advanced_parts()
    )
    return Fields(
        main=[bind(path) for path in (*main, *(WHERE if shows_where else ()))],
        hidden=[] if shows_where else [bind(path) for path in elsewhere],
        environment=environment,
        parts=parts,
        step_recipe_unused=unused.get("reward.step_recipe", ""),
    )


def describe_start(draft: LaunchDraft) -> dict[str, Any]:
    """Describe where the settings come from, and their values for the script."""
    start, missing, path = draft.start, draft.missing_recipe, draft.model_path
    template = read_chat_template(Path(path)) if path.startswith("/") else ""
    heading = "New run"
    if start.run is not None:
        heading = f"Clone {start.run.name}"
    if start.run is not None and start.fork is not None:
        heading = f"Fork {start.run.name} at step {start.fork.step}"
    return {
        "form": draft,
        "missing_recipe_text": recipe_sentence(missing) if missing else "",
        "start_values": {
            "heading": heading,
            "name": start.name,
            "texts": start.texts,
            "phases": start.phases,
            "model": path,
            "reads_thinking": bool(re.search(r"\benable_thinking\b", template)),
            "dataset": draft.dataset,
            "recipe": draft.recipe,
            "step_recipe": draft.step_recipe,
            "has_step_recipe": start.step_recipe is not None,
        },
    }


def describe_choices(choices: Choices) -> dict[str, Any]:
    """Describe which settings, rewards and datasets suit each other, for the script."""
    recipes = {str(version.pk): version.spec for version in choices.recipes}
    return {
        "presets": offer_presets(),
        "reproductions": offer_reproductions(),
        "unused_table": unused_table(),
        "recipe_facts": {pk: recipe_facts(spec) for pk, spec in recipes.items()},
        "needed_columns": {pk: needed_columns(spec) for pk, spec in recipes.items()},
        "environment_recipes": [
            pk
            for pk, spec in recipes.items()
            if any(rule["kind"] == "environment" for rule in spec.get("rules", ()))
        ],
        "dataset_columns": {
            str(version.pk): version.mapping.get("columns", [])
            for version in choices.datasets
        },
    }


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
    config: RunConfig | None = None
    seconds: float | None = None  # of all steps, on this device
    device: str = ""


def summarize(draft: LaunchDraft) -> Summary:
    launch = check_draft(draft)
    if launch is None:
        return Summary()
    config, start, cluster = launch.config, draft.start, draft.choices.cluster
    memory = estimate_memory(
        config,
        largest_set=max(
            (chosen.num_rows for chosen in launch.evaluation_sets), default=0
        ),
        cluster=cluster,
    )
    warnings, hints = warn(launch), _hints(launch, start)
    ranks, room = Needs.of(config.model_dump()).ranks, ""
    if ranks is not None:  # on a cluster
        if (lack := lack_on(cluster, ranks)) and lack not in warnings:
            hints.append(lack)
        gpus = cluster.room(ranks) if cluster else None
        room = gpus.sentence.removesuffix(".") if gpus else "Cluster status unknown"
    phases = _phases_left(config, start)
    num_steps = sum(number for _, number in phases)
    # The steps of several phases take different times.
    paces = [] if config.phases else past_paces(_team_of(launch), config)
    return Summary(
        amounts=_amounts(launch, start, paces),
        memory=memory,
        warnings=warnings,
        hints=hints,
        line=(
            *_wait(_team_of(launch), config),
            *_line(phases, paces, memory, room),
        ),
        config=config,
        seconds=paces[0].step_seconds * num_steps if paces else None,
        device=paces[0].device if paces else "",
    )


def describe_times(team: Team, launches: Sequence[Launch]) -> str:
    """Say how long the runs of a sweep take together: 4 runs, about 8 min."""
    paces: dict[Any, list[Pace]] = {}
    seconds = 0.0
    for launch in launches:
        shape = shape_of(launch.config.model_dump(mode="json"))
        if shape not in paces:
            paces[shape] = past_paces(team, launch.config)
        if not paces[shape]:
            return f"{len(launches)} runs, no time estimate yet"
        seconds += paces[shape][0].step_seconds * launch.config.optim.num_steps
    at_once = min(len(launches), sum(host.num_slots for host in known_hosts()) or 1)
    how = "one after the other" if at_once == 1 else f"{at_once} at a time"
    return f"{len(launches)} runs, about {rough_duration(seconds / at_once)}, {how}"


def _wait(team: Team, config: RunConfig) -> Iterator[str]:
    """Say when it starts, where it waits for a worker."""
    start = start_of_new(team, config)
    if start.seconds != 0 and known_hosts():
        yield title_start(start)


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
    """Describe what it waits for, time, memory and size, each in a few words."""
    steps = sum(num_steps for _, num_steps in phases)
    if not known_hosts():
        yield "No worker is running"
    if room:
        yield room
    if paces:
        pace = paces[0]
        where = f" on {pace.device_title}" if pace.device else ""
        scaled = f", scaled from {pace.scaled_from}" if pace.scaled_from else ""
        yield f"About {duration(pace.step_seconds * steps)}{where}{scaled}"
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
            value=sig3(_epochs(launch, phases)),
            how=f"{_num_train(launch):,} training rows",
        ),
        _evaluations(launch, done),
        _checkpoints(config, done),
    ]


def _per_step(phases: Phases) -> list[Amount]:
    """Describe the longest phase; others may differ."""
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
    """Sum the maximum; completions of the dataset are not sampled."""
    total = sum(
        phase.config.completions_per_step
        * phase.config.rollout.max_new_tokens
        * (1 + _refills(phase.config))
        * num_steps
        for phase, num_steps in phases
        if phase.config.rollout.source != "dataset"
    )
    amount = Amount(title="Total tokens sampled", value=f"up to {si(total)}")
    return [amount] if total else []


def _refills(config: RunConfig) -> int:
    rollout = config.rollout
    return rollout.max_refills if rollout.dynamic_sampling == "refill" else 0


def _times(config: RunConfig, paces: list[Pace], phases: Phases) -> list[Amount]:
    """Estimate times without evaluations and checkpoints."""
    if config.phases:
        how = "no estimate for runs with several phases"
        return [Amount(title="Time", value="unknown", how=how)]
    if not paces:
        how = "no similar run yet"
        return [Amount(title="Time per step", value="unknown", how=how)]
    return [_time(pace, sum(num for _, num in phases)) for pace in paces]


def _time(pace: Pace, num_steps: int) -> Amount:
    of_runs = f"{pace.num_runs} similar runs" if pace.num_runs > 1 else "1 similar run"
    if pace.num_ranks:
        of_runs += (
            f" with {pace.num_ranks} rank{'' if pace.num_ranks == 1 else 's'}, "
            "assuming time falls in proportion to the ranks"
        )
    if pace.scaled_from:
        of_runs += f", scaled from {pace.scaled_from}"
    total = duration(pace.step_seconds * num_steps)
    return Amount(
        title=f"Time per step on {pace.device_title}"
        if pace.device
        else "Time per step",
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
        return Amount(
            title="Updates", value=f"{total:,}", how=f"over {len(phases)} phases"
        )
    ((phase, num_steps),) = phases
    optim = phase.config.optim
    factors = [f"{num_steps:,} steps", f"{optim.updates_per_batch:,}"]
    if optim.minibatches > 1:
        factors.append(f"{optim.minibatches:,} minibatches")
    return Amount(title="Updates", value=f"{total:,}", how=" × ".join(factors))


def _num_train(launch: Launch) -> int:
    return launch.dataset_version.num_rows - launch.config.data.num_eval_rows


def _epochs(launch: Launch, phases: Phases) -> float:
    return sum(
        num * phase.config.rollout.prompts_per_step for phase, num in phases
    ) / _num_train(launch)


def _evaluations(launch: Launch, done: int) -> Amount:
    config, sets = launch.config, launch.evaluation_sets
    every, rows = config.evaluation.every_steps, config.data.num_eval_rows
    num_sets = len(sets) + bool(rows)
    rows += sum(chosen.num_rows for chosen in sets)
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
    newest = min(count, config.checkpoint.keep_last)
    return Amount(
        title="Checkpoints", value=f"{count:,}", how=f"newest {newest:,} kept"
    )


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
            f"The run repeats each prompt about {sig3(epochs)} times, so the "
            "model may memorise answers. Use fewer steps or more rows."
        )
    has_rows = config.data.num_eval_rows or config.evaluation.sets
    if not has_rows or not config.evaluation.every_steps:
        hints.append(
            "The run has no evaluation, so you cannot tell learning from memorising. "
            "Hold out some prompts and set an evaluation interval."
        )
    if config.rollout.repetition_penalty != 1:
        hints.append(
            "Completions sampled with a repetition penalty are not the policy's own, "
            "which biases its gradient. Prefer rollout.repetition_penalty = 1."
        )
    return hints + [
        f"{chosen.name}: {leak.sentence}"
        for chosen in launch.evaluation_sets
        if (leak := stored_leak(chosen.version, launch.dataset_version))
        and leak.num_rows
    ]


def warn(launch: Launch) -> tuple[str, ...]:
    """Problems that would waste the run; the user has to confirm them."""
    version = launch.recipe_version
    # A busy sandbox may be free in a moment: its answer is not cached.
    is_cached = not needs_sandbox(Recipe.model_validate(version.spec))
    find = rules_without_score if is_cached else rules_without_score.__wrapped__
    warnings = []
    needs, hosts = Needs.of(launch.config.model_dump()), known_hosts()
    if hosts and (lack := describe_lack(needs, hosts, or_else="choose")):
        warnings.append(f"No worker can start this run. {lack}")
    warnings += describe_missing(needed_packages(launch.config), needs, hosts)
    if needs.ranks is not None:  # on a cluster, which may never have the room
        cluster = known_cluster(_team_of(launch))
        room = cluster.room(needs.ranks) if cluster else None
        lack = lack_on(cluster, needs.ranks)
        if lack and not (room and room.is_possible):
            warnings.append(lack)
    warnings += [
        sentence
        for sentence in (
            warn_of_lengths(launch.config, launch.dataset_version),
            warn_of_characters(launch.config.model.path, launch.dataset_version),
            warn_of_probe(launch),
        )
        if sentence
    ]
    if launch.config.environment.runs_code and (lack := sandbox_here().problem):
        warnings.append(f"The environment cannot run its code: {lack}")
    # What is tried is one turn, which these score in episodes only.
    is_played = launch.config.environment.is_there
    rules = launch.config.reward.recipe.rules if is_played else ()
    untried = {rule.name for rule in rules if rule.kind in EPISODE_RULES}
    with asking_for(f"team {version.recipe.team_id}"):
        others = [chosen.version for chosen in launch.evaluation_sets]
        for rows in dict.fromkeys([launch.dataset_version, *others]):
            name = "these rows" if rows == launch.dataset_version else rows
            for rule, reason in find(version.pk, rows.pk):
                if rule not in untried:
                    warnings.append(f"Rule {rule} cannot score {name}: {reason}")
    return tuple(warnings)


def _team_of(launch: Launch) -> Team:
    return launch.dataset_version.dataset.team


@lru_cache(maxsize=256)  # versions never change, so neither does the answer
def rules_without_score(recipe_pk: int, dataset_pk: int) -> tuple[tuple[str, str], ...]:
    """List each rule that cannot score the first rows, and the reason."""
    recipe = Recipe.model_validate(
        RecipeVersion.objects.values_list("spec", flat=True).get(pk=recipe_pk)
    )
    rows = DatasetRow.objects.filter(version=dataset_pk).order_by("position")
    reasons: dict[str, str] = {}
    for row in rows[:ROWS_TRIED]:
        answer = next(filter(None, row.answers), "1")
        completion = f"<think>\n</think>\n<answer>{answer}</answer>"
        with limited_to(SECONDS_PER_ROW):
            errors = row_errors(recipe, as_sample(row, completion))
        for rule, reason in errors.items():
            reasons.setdefault(rule, reason)
    return tuple(reasons.items())
