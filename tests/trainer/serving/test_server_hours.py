"""GPU-hours of rollout and reference servers, as a run counts them."""

import json

import pytest
import torch

from trainer.config import RolloutConfig
from trainer.rollout.server_engine import _KIND as ROLLOUT
from trainer.serving import client
from trainer.serving.client import (
    Connection,
    Unreachable,
    hold_server,
    release_server,
    server_metrics,
)
from trainer.serving.reference_client import _KIND as REFERENCE
from trainer.serving.server import gpus_of

H100 = {"name": "NVIDIA H100", "count": 4}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that stands still, and no servers of other tests."""
    now = [1_000.0]
    monkeypatch.setattr(client, "_servers", {})
    monkeypatch.setattr(client.time, "monotonic", lambda: now[0])
    return now


def hold(url="http://127.0.0.1:1", kind=ROLLOUT, *, status, **options):
    connection = Connection(url, kind, token="t" * 16)
    return hold_server(connection, json.dumps(status).encode(), **options)


def test_a_rollout_server_counts_while_it_is_held(clock):
    hold(status={"gpus": H100})
    clock[0] += 900
    first = server_metrics()
    clock[0] += 1_800
    second = server_metrics()
    release_server("http://127.0.0.1:1")
    clock[0] += 3_600

    name = "server/rollout/NVIDIA H100/gpu_hours"
    assert (first, second) == ({name: 1.0}, {name: 2.0})
    assert server_metrics() == {}


def test_servers_of_the_same_hardware_add_up_and_a_new_lease_goes_on(clock):
    hold(status={"gpus": H100})
    hold("http://127.0.0.1:2", status={"gpus": {"name": "NVIDIA H100", "count": 2}})
    clock[0] += 1_800
    hold(status={"gpus": H100})  # it was started again
    clock[0] += 1_800

    assert server_metrics() == {"server/rollout/NVIDIA H100/gpu_hours": 6.0}


@pytest.mark.parametrize("gpus", [None, {}, [], {"count": "4"}])
def test_a_server_that_tells_nothing_counts_by_the_settings(gpus, clock):
    hold(status={"gpus": gpus}, num_gpus=RolloutConfig(server_gpus=2).server_gpus)
    clock[0] += 3_600
    by_settings = server_metrics()
    hold(status={"gpus": gpus})
    clock[0] += 3_600

    assert by_settings == {"server/rollout/unknown/gpu_hours": 2.0}
    assert server_metrics() == {"server/rollout/unknown/hours": 1.0}


def test_a_server_without_gpus_is_left_out(clock):
    hold(status={"gpus": gpus_of(torch.device("cpu"))})
    clock[0] += 3_600

    assert server_metrics() == {}


def test_a_shared_server_is_split_by_requests(clock, monkeypatch):
    totals = [50, 50, 20]
    held = hold(
        kind=REFERENCE,
        status={"gpus": H100, "num_requests": 10},
        count_requests=lambda: totals.pop(0),
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    hours = []
    for num_own in (5, 0, 3):  # a process of two; the server is restarted in the end
        held.num_own = num_own
        clock[0] += 3_600
        hours.append(server_metrics()["server/reference/NVIDIA H100/gpu_hours"])

    assert hours == [pytest.approx(4 * 10 / 40), 0, 4]


def test_a_shared_server_that_is_away_counts_wholly(clock):
    def count() -> int:
        raise Unreachable("gone")

    held = hold(kind=REFERENCE, status={"gpus": H100}, count_requests=count)
    held.num_own = 1
    clock[0] += 3_600

    assert server_metrics() == {"server/reference/NVIDIA H100/gpu_hours": 4.0}


def test_a_server_reports_name_and_number_of_its_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")

    assert gpus_of(torch.device("cuda"), number=8) == {"name": "NVIDIA L4", "count": 8}
