"""Learning curves of prompts, timed: `pytest -m load tests/bench/bench_prompts.py -s`.

1,000 steps × 128 prompts × 8 completions with their texts, and then 100,000 steps × 8
prompts of rollups alone: the Prompts tab and one prompt's page.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from django.db import connection
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetRow
from dashboard.runs.models import Run
from dashboard.samples.models import Group, StepRollup
from dashboard.samples.prompt_visits import COUNTED, ROLLED_UP
from dashboard.samples.recipes import right_from
from dashboard.samples.signals.composition import Composition
from dashboard.samples.signals.rollup import roll_up
from dashboard.samples.signals.step_groups import StepGroup
from dashboard.training.copying import (
    COMPLETION_COLUMNS,
    GROUP_COLUMNS,
    ROLLUP_COLUMNS,
    copy_rows,
    number_array,
    take_ids,
    text_array,
)
from tests.bench.bench_curves import best_seconds
from tests.bench.machine import heading, say, table
from tests.dashboard.samples.factories import make_run
from trainer.rewards.spec import Recipe

pytestmark = pytest.mark.load
NUM_PROMPTS = 7_473  # as many as GSM8K has
GROUP_SIZE = 8
TEXT = "Let us think step by step. " * 30  # 810 characters
STEPS_AT_ONCE = 50


def test_a_run_of_a_million_completions(team: Team, alice_client: Client) -> None:
    run = make_prompts(team, num_steps=1_000)
    store(run, num_steps=1_000, num_groups=128, with_texts=True)
    prompt = int(Group.objects.filter(run=run).earliest("pk").prompt_index)

    say(explain("rollups", ROLLED_UP, [run.pk, 1, 1_000]))
    rows = [time_pages(alice_client, run, prompt, "1,000 × 128 × 8")]
    bounds = right_from(run, range(1, 1_001))
    given = [list(bounds), list(bounds.values()), run.pk, None, None]
    say(explain("without rollups", COUNTED, given))
    say(explain("a step in progress", COUNTED, [[1_000], [1.2], *given[2:]]))
    StepRollup.objects.filter(run=run).delete()
    rows.append(time_pages(alice_client, run, prompt, "the same without rollups"))
    show(rows)


def test_a_run_of_100_000_steps(team: Team, alice_client: Client) -> None:
    run = make_prompts(team, num_steps=100_000)
    store(run, num_steps=100_000, num_groups=8, with_texts=False)
    prompt = int(Group.objects.filter(run=run).earliest("pk").prompt_index)

    show([time_pages(alice_client, run, prompt, "100,000 × 8 × 8")])


def make_prompts(team: Team, *, num_steps: int) -> Run:
    run = make_run(team, num_steps=num_steps)
    version = run.dataset_version
    version.num_rows = NUM_PROMPTS
    version.save()
    DatasetRow.objects.bulk_create(
        DatasetRow(version=version, position=i, prompt=f"What is {i}?", answer=str(i))
        for i in range(NUM_PROMPTS)
    )
    return run


def store(run: Run, *, num_steps: int, num_groups: int, with_texts: bool) -> None:
    """By COPY, as ingest does it; without texts there are no completions either."""
    draw = np.random.default_rng(7)
    for first in range(1, num_steps + 1, STEPS_AT_ONCE):
        steps = range(first, first + STEPS_AT_ONCE)
        drawn = [(s, draw_groups(draw, s / num_steps, num_groups)) for s in steps]
        ids = take_ids("samples_group", num_groups * len(steps))
        groups = [(step, group) for step, some in drawn for group in some]
        copy_rows("samples_group", GROUP_COLUMNS, group_rows(run, ids, groups))
        if with_texts:
            rows = completion_rows(ids, groups)
            copy_rows("samples_groupcompletions", COMPLETION_COLUMNS, rows)
        copy_rows("samples_steprollup", ROLLUP_COLUMNS, rollup_rows(run, drawn))
    with connection.cursor() as cursor:
        cursor.execute(
            "ANALYZE samples_group, samples_groupcompletions, samples_steprollup"
        )


def draw_groups(
    draw: np.random.Generator, progress: float, num: int
) -> list[StepGroup]:
    groups = []
    for prompt in draw.choice(NUM_PROMPTS, num, replace=False).tolist():
        chance = (prompt % 97 / 97) * progress
        rewards = np.where(draw.random(GROUP_SIZE) < chance, 1.2, 0.2)
        mean, std = float(rewards.mean()), float(rewards.std())
        groups.append(
            StepGroup(
                prompt_index=prompt,
                reward_mean=mean,
                reward_std=std,
                signal="mixed" if std else "tied",
                is_trained=True,
                rewards=rewards.tolist(),
                advantages=(rewards - mean).tolist(),
                num_tokens=[200] * GROUP_SIZE,
                rules=[{"answer": float(r > 1), "format": 1.0} for r in rewards],
                texts=[f"<answer>{r}</answer>" for r in rewards],
            )
        )
    return groups


Stepped = tuple[int, StepGroup]


def group_rows(
    run: Run, ids: list[int], groups: list[Stepped]
) -> Iterator[tuple[object, ...]]:
    names = text_array(["answer", "format"])
    for pk, (step, group) in zip(ids, groups, strict=True):
        prompt, mean, std = group.prompt_index, group.reward_mean, group.reward_std
        text = f"What is {prompt}?"
        yield (
            *(pk, run.pk, step, prompt, 1, step, text, str(prompt), mean, std),
            *(group.signal, names, True, 0),
        )


def completion_rows(
    ids: list[int], groups: list[Stepped]
) -> Iterator[tuple[object, ...]]:
    for pk, (step, group) in zip(ids, groups, strict=True):
        text = f"{step} {TEXT}"
        yield (
            pk,
            text_array([text] * GROUP_SIZE),
            len(text) * GROUP_SIZE,
            number_array(group.num_tokens),
            text_array(["stop"] * GROUP_SIZE),
            number_array(group.rewards),
            number_array(group.advantages),
            number_array([-0.5] * GROUP_SIZE),
            number_array(score for each in group.rules for score in each.values()),
        )


def rollup_rows(
    run: Run, drawn: list[tuple[int, list[StepGroup]]]
) -> Iterator[tuple[object, ...]]:
    recipe = Recipe.model_validate(run.config["reward"]["recipe"])
    composition = Composition(kind="sum", recipe=recipe, weights={})
    for step, groups in drawn:
        rollup = roll_up(groups, {"time/step": 6.0}, composition, step)
        yield (
            run.pk,
            step,
            1,
            rollup.groups,
            rollup.reward_quantiles,
            rollup.reward_histogram,
            rollup.advantage_quantiles,
            rollup.advantage_histogram,
            text_array(rollup.rule_names),
            rollup.rules,
            rollup.anatomy,
            rollup.passes,
            rollup.majorities,
        )


def explain(name: str, query: str, given: list[object]) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {query}", given)
        return f"\n{name}\n" + "\n".join(line for (line,) in cursor)


def time_pages(client: Client, run: Run, prompt: int, name: str) -> list[str]:
    prompts = f"/alpha/runs/{run.pk}/prompts/"
    addresses = [
        prompts,
        f"{prompts}?which=oscillating&sort=-change&page=9",
        f"{prompts}{prompt}/",
    ]
    for address in addresses:
        assert client.get(address).status_code == 200
    seconds = [best_seconds(lambda a=a: client.get(a), times=5) for a in addresses]
    return [name, *(f"{each * 1000:.0f} ms" for each in seconds)]


def show(rows: list[list[str]]) -> None:
    say("\n" + heading("pytest", packages=("django", "psycopg", "numpy")))
    head = ("steps × prompts × completions", "all prompts", "a class, sorted")
    say(table((*head, "one prompt"), rows))
