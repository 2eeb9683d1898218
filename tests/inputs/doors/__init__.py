"""Each way in, with what comes through it and must be answered."""

from __future__ import annotations

from tests.inputs.cases import Door
from tests.inputs.doors import (
    datasets,
    imported_runs,
    outside_runs,
    requests,
    rewards,
    runs,
    teams,
)

DOORS: list[Door] = [
    *imported_runs.DOORS,
    *outside_runs.DOORS,
    *rewards.DOORS,
    *runs.DOORS,
    *datasets.DOORS,
    *requests.DOORS,
    *teams.DOORS,
]
