"""A run or a probe of a dataset that goes to the trash at the same moment."""

import threading
import time
from collections.abc import Callable
from html import unescape

import pytest
from django.db import connection, transaction

from dashboard.accounts.models import Team
from dashboard.analysis.probes import services
from dashboard.analysis.probes.models import Probe
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.trash import delete_dataset, trash_dataset
from dashboard.pages import launch as launch_view
from dashboard.runs.launch.launching import Launch, launch_run
from dashboard.runs.models import Run
from tests.dashboard.analysis.probes.factories import make_probe
from tests.dashboard.runs.launching import make_config, make_dataset, make_recipe
from trainer.config import RunConfig


def launch(team: Team, version: DatasetVersion) -> None:
    requested = Launch(
        name="brave-otter",
        config=RunConfig.model_validate(make_config()),
        dataset_version=version,
        recipe_version=make_recipe(team),
        model_label="model",
    )
    launch_run(requested, team=team, user=None)


def probe(team: Team, version: DatasetVersion) -> None:
    make_probe(team, version)


BOTH = pytest.mark.parametrize("begin", [launch, probe])


def beside(call: Callable[[], object]) -> tuple[threading.Thread, list[str]]:
    """Call it in another connection, until it waits for a lock; what it refused."""
    refused: list[str] = []

    def run() -> None:
        try:
            call()
        except ValueError as error:
            refused.append(str(error))
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and thread.is_alive():
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[0]:
                break
        time.sleep(0.01)
    assert thread.is_alive(), "it did not wait"
    return thread, refused


@BOTH
@pytest.mark.django_db(transaction=True)
def test_a_launch_during_trashing_waits_and_is_refused(team, begin):
    version = make_dataset(team)

    with transaction.atomic():
        trash_dataset(version.dataset, None)
        thread, refused = beside(lambda: begin(team, version))
    thread.join()

    assert [sentence.split()[0] for sentence in refused] == ["sums"]
    assert not Run.objects.exists()
    assert not Probe.objects.exists()


@BOTH
@pytest.mark.django_db(transaction=True)
def test_a_launch_before_trashing_keeps_the_dataset(team, begin):
    version = make_dataset(team)

    with transaction.atomic():
        begin(team, version)
        thread, _ = beside(lambda: trash_dataset(version.dataset, None))
    thread.join()

    assert Run.objects.count() + Probe.objects.count() == 1
    version.dataset.refresh_from_db()
    assert version.dataset.trashed_at


@BOTH
@pytest.mark.django_db
def test_a_deleted_dataset_is_refused(team, begin):
    version = make_dataset(team)
    trash_dataset(version.dataset, None)
    delete_dataset(version.dataset, None)

    with pytest.raises(ValueError, match=r"sums .* trash"):
        begin(team, version)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("address", "module", "name"),
    [
        ("runs/new", launch_view, "launch_run"),
        ("runs/new/probe", services, "start_probe"),
    ],
)
def test_the_form_shows_the_refusal(
    alice_client, team, monkeypatch, address, module, name
):
    version, recipe = make_dataset(team), make_recipe(team)
    begin = getattr(module, name)

    def begin_late(*given: object, **named: object) -> object:
        trash_dataset(version.dataset, None)
        return begin(*given, **named)

    monkeypatch.setattr(module, name, begin_late)
    form = {"name": "otter", "model_other": "org/model", "confirmed": "on"}
    form |= {"dataset": str(version.pk), "recipe": str(recipe.pk)}

    answer = alice_client.post(f"/alpha/{address}", form)

    assert answer.status_code == 422
    (refused,) = answer.context["form"].problems.general
    assert refused.startswith("sums ")
    assert refused in unescape(answer.text)
    assert not Run.objects.exists()
