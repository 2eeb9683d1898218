"""The launch form tells what the workers that are alive lack."""

from __future__ import annotations

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.training.models import Worker
from dashboard.training.workers import register
from tests.dashboard.runs.launching import make_dataset, make_recipe

pytestmark = pytest.mark.django_db


@pytest.fixture
def form(team: Team) -> dict[str, object]:
    return {
        "name": "big",
        "model": "other",
        "model_other": "org/model",
        "dataset": make_dataset(team).pk,
        "recipe": make_recipe(team).pk,
        "model.device": "cuda",
    }


def summary(client: Client, form: dict[str, object]) -> str:
    answer = client.post("/alpha/runs/new/summary", form)
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_run_that_no_worker_suits_is_warned_of(
    alice_client: Client, form: dict[str, object]
) -> None:
    register("training@here", num_slots=1)
    Worker.objects.update(hardware={"gpus": []})

    html = summary(alice_client, form)

    assert "No worker would start this run now. It needs a GPU; the worker" in html
    assert "Or choose “auto” as its device." in html
    assert "Launch anyway" in html


def test_a_run_that_a_worker_suits_is_not(
    alice_client: Client, form: dict[str, object]
) -> None:
    register("training@here", num_slots=1)
    Worker.objects.update(hardware={"gpus": [{"name": "L4", "memory_bytes": 1}]})

    assert "No worker would start" not in summary(alice_client, form)


def test_without_a_worker_the_run_will_wait_which_needs_no_tick(
    alice_client: Client, form: dict[str, object]
) -> None:
    html = summary(alice_client, form)

    assert "The run will wait. No worker is alive" in html
    assert "Launch anyway" not in html


@pytest.mark.parametrize(
    ("packages", "is_warned"),
    [([], True), (["bitsandbytes"], False), (None, False)],  # None: an older worker
)
def test_a_package_that_a_worker_lacks_is_warned_of(
    packages: list[str] | None,
    is_warned: bool,
    alice_client: Client,
    form: dict[str, object],
) -> None:
    register("training@here", num_slots=1)
    told = {} if packages is None else {"packages": packages}
    Worker.objects.update(
        hardware={"gpus": [{"name": "L4", "memory_bytes": 1}], **told}
    )

    html = summary(alice_client, form | {"optim.optimizer": "adamw_8bit"})

    assert ("pip install bitsandbytes" in html) == is_warned
    assert ("Launch anyway" in html) == is_warned
    assert ("training@here" in html) == is_warned


def test_without_a_worker_nothing_is_said_of_packages(
    alice_client: Client, form: dict[str, object]
) -> None:
    html = summary(alice_client, form | {"optim.optimizer": "adamw_8bit"})

    assert "pip install" not in html
