"""A dataset of prompts that a task has written."""

from __future__ import annotations

from collections.abc import Mapping

from dashboard.accounts.models import Team, User
from dashboard.datasets.generators.reasoning_gym import Task, generate_rows
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.services import create_dataset_version


def make_generated(
    *,
    team: Team,
    user: User,
    task: Task,
    name: str,
    size: int,
    seed: int,
    typed: Mapping[str, str],
) -> DatasetVersion:
    """`typed` are options as texts; ValueError where one of them is wrong."""
    changed = {
        option.name: value
        for option in task.options
        if (value := option.parse(typed.get(option.name, option.text)))
        != option.default
    }
    return create_dataset_version(
        team=team,
        name=name,
        rows=generate_rows(task.name, size=size, seed=seed, options=changed),
        mapping={
            "prompt": "question",
            "answer": "answer",
            "columns": ["entry", "task"],
        },
        source={
            "kind": "generator",
            "task": task.name,
            "size": size,
            "seed": seed,
            "options": changed,
        },
        user=user,
    )
