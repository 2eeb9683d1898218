"""The launch form tells what the workers that are alive lack."""

from html import unescape

import pytest
from django.test import Client

from dashboard.runs.launch.page import Summary
from dashboard.runs.queue.hosts import Needs, describe_lack
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import register
from tests.dashboard.runs.launching import make_dataset, make_recipe

ONE_GPU: dict[str, object] = {"gpus": [{"name": "L4", "memory_bytes": 1}]}


@pytest.fixture
def form(team) -> dict[str, object]:
    return {
        "name": "big",
        "model": "other",
        "model_other": "org/model",
        "dataset": make_dataset(team).pk,
        "recipe": make_recipe(team).pk,
        "model.device": "cuda",
    }


def summary(client: Client, form: dict[str, object]) -> Summary:
    """Its warnings are on the page, with a tick to launch all the same."""
    answer = client.post("/alpha/runs/new/summary", form)
    assert answer.status_code == 200
    found: Summary = answer.context["summary"]
    assert all(warning in unescape(answer.text) for warning in found.warnings)
    assert ('name="confirmed"' in answer.text) == bool(found.warnings)
    return found


def test_a_run_without_a_suitable_worker_has_a_warning(alice_client, form):
    register("training@here", num_slots=1)
    Worker.objects.update(hardware={"gpus": []})

    (warning,) = summary(alice_client, form).warnings

    assert "GPU" in warning
    Worker.objects.update(hardware=ONE_GPU)
    assert not summary(alice_client, form).warnings


def test_without_a_worker_there_is_a_hint_but_no_warning(alice_client, form):
    found = summary(alice_client, form | {"optim.optimizer": "adamw_8bit"})

    assert describe_lack(Needs(), []) in found.hints[0]
    assert not found.warnings  # nor of packages


def test_a_missing_package_of_a_worker_has_a_warning(alice_client, form):
    register("training@here", num_slots=1)
    # An older worker does not say which it has.
    for hardware, is_warned in (
        ({"packages": []}, True),
        ({"packages": ["bitsandbytes"]}, False),
        ({}, False),
    ):
        Worker.objects.update(hardware=ONE_GPU | hardware)

        found = summary(alice_client, form | {"optim.optimizer": "adamw_8bit"})

        assert bool(found.warnings) == is_warned, hardware
        for warning in found.warnings:
            assert "pip install bitsandbytes" in warning
            assert "training@here" in warning
