"""Runs whose prompts are visited, and their Prompts tab as a test reads it."""

from typing import Any
from uuid import uuid4

from django.test import Client

from dashboard.datasets.row import Row
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group

RIGHT, WRONG = 1.2, 0.2
ROWS = [
    Row(prompt=f"What is {i}?", answer=str(i), columns={"level": i % 3, "x": 1e16})
    for i in range(30)
]
MAPPING = {"prompt": "q", "answer": "a", "columns": ["level", "x"]}


def visit(run: Run, step: int, prompt: int, num_right: int, **fields: Any) -> None:
    rewards = (RIGHT,) * num_right + (WRONG,) * (4 - num_right)
    make_group(run, step=step, prompt_index=prompt, rewards=rewards, **fields)


def address(run: Run, query: str = "") -> str:
    return f"/alpha/runs/{run.pk}/prompts/?{query}"


def listed(client: Client, run: Run, query: str = "") -> list[int]:
    page = client.get(address(run, query))
    assert page.status_code == 200
    return [line.position for line in page.context.get("lines", [])]


def make(client: Client, run: Run, query: str = "", **changes: str) -> Any:
    form = {"target": "", "name": "Hard", "key": str(uuid4()), **changes}
    return client.post(address(run, query), form)
