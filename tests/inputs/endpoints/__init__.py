"""Endpoints with their bad inputs."""

from tests.inputs.cases import Endpoint
from tests.inputs.endpoints import (
    datasets,
    external_runs,
    imported_runs,
    requests,
    rewards,
    runs,
    teams,
)

ENDPOINTS: list[Endpoint] = [
    *imported_runs.ENDPOINTS,
    *external_runs.ENDPOINTS,
    *rewards.ENDPOINTS,
    *runs.ENDPOINTS,
    *datasets.ENDPOINTS,
    *requests.ENDPOINTS,
    *teams.ENDPOINTS,
]
