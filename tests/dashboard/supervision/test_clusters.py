"""Ray clusters: whose address a worker connects to, what it reads, what pages show."""

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.accounts.models import AuditEntry
from dashboard.project.environment import read_environment
from dashboard.runs.models import Run
from dashboard.runs.queries import run_directory
from dashboard.runs.queue.hosts import known_cluster
from dashboard.runs.trash import delete_run, stored_folders_to_delete
from dashboard.supervision import clusters, tasks
from dashboard.supervision.clusters import (
    ClusterReader,
    StorageCleaner,
    cluster_variables,
)
from dashboard.supervision.models import Cluster, TeamCluster
from dashboard.supervision.process import TrainerProcess
from tests.page_client import PageClient

pytestmark = pytest.mark.django_db
A, B = "ray-a:6379", "ray-b:6379"
NODE = {
    "name": "node-1",
    "is_alive": True,
    "gpu_kind": "H100",
    "gpus": 8,
    "gpus_free": 6.0,
    "cpus": 64.0,
    "cpus_free": 10.0,
    "memory_bytes": 2**40,
}


@pytest.fixture(autouse=True)
def addresses(settings) -> None:
    settings.COHORT_RAY_ADDRESS = A
    settings.COHORT_RAY_TEAM_ADDRESSES = (B,)


def facts(*nodes: dict[str, Any], error: str | None = None) -> dict[str, Any]:
    return {"error": error, "ray_version": "2.60.0", "nodes": list(nodes)}


def store(address: str = A, **found: Any) -> None:
    found = found or facts(NODE, {**NODE, "name": "node-2", "gpus_free": 8.0})
    Cluster.objects.update_or_create(
        address=address, defaults={"facts": found, "read_at": Now(), "worker": "w"}
    )


def page(client: PageClient) -> str:
    return client.read(reverse("team_compute", args=["alpha"]))


def choose(client: Client, address: str) -> int:
    url = reverse("team_compute", args=["alpha"])
    return client.post(url, {"address": address}).status_code


def read_with(monkeypatch: pytest.MonkeyPatch, code: str) -> ClusterReader:
    """A reader whose command is this Python."""
    start = clusters.subprocess.Popen

    def run(command: list[str], **options: Any) -> Any:
        return start([sys.executable, "-c", code, *command[-1:]], **options)

    monkeypatch.setattr(clusters.subprocess, "Popen", run)
    return ClusterReader("training@gpu-1")


def finish(reader: ClusterReader | StorageCleaner) -> None:
    reader.tick()  # starts
    deadline = time.monotonic() + 30
    while reader._command is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        reader.tick()


def test_a_worker_stores_what_its_subprocess_reads(monkeypatch, team):
    printed = json.dumps({"address": A, **facts(NODE), "later": 1})
    reader = read_with(monkeypatch, f"import sys; print({printed!r})")

    finish(reader)

    row = Cluster.objects.get()
    assert (row.address, row.worker, row.facts) == (A, "training@gpu-1", facts(NODE))
    cluster = known_cluster(team)
    assert cluster is not None
    assert (cluster.problem, cluster.num_gpus, cluster.gpus_free) == ("", 8, 6)
    reader.tick()
    assert reader._command is None  # it was read less than 30 s ago


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(1)",
        "print('[]')",
        'print(\'{"nodes": [{"gpus": "x"}]}\')',
        "print('{\"nodes\": [3]}')",
    ],
)
def test_a_reading_that_fails_leaves_a_reason(code, monkeypatch, team):
    finish(read_with(monkeypatch, code))

    cluster = known_cluster(team)
    assert cluster is not None
    assert (bool(cluster.problem), cluster.nodes) == (True, ())


def test_a_reading_that_hangs_is_killed_and_never_waited_for(monkeypatch):
    reader = read_with(monkeypatch, "import time; time.sleep(600)")
    reader.tick()
    assert reader._command is not None
    child = reader._command.child
    begin = time.monotonic()
    reader.tick()
    assert time.monotonic() - begin < 1
    monkeypatch.setattr(clusters, "READ_SECONDS", 0.0)

    reader.tick()

    assert child.returncode == -9
    assert Cluster.objects.get().facts["error"]


@pytest.fixture
def stored(settings, tmp_path) -> Callable[[Run, str], Path]:
    """The folder in the storage that a run on a cluster has written to."""
    settings.COHORT_RAY_STORAGE = f"file://{tmp_path}/storage"

    def store(run: Run, name: str) -> Path:
        folder = tmp_path / "storage" / name
        (folder / "checkpoints").mkdir(parents=True)
        named = run_directory(run.pk).ray_storage
        named.parent.mkdir(parents=True, exist_ok=True)
        named.write_text(name)
        return folder

    return store


@pytest.mark.django_db(transaction=True)
def test_a_worker_deletes_what_a_deleted_run_has_in_the_storage(
    run, launch, stored, alice
):
    folder = stored(run, f"run-{run.pk}-0123abcd")
    kept = stored(other := launch(name="other"), f"run-{other.pk}-0123abcd")
    now = timezone.now()
    Run.objects.update(state="stopped", finished_at=now, trashed_at=now)

    delete_run(run, alice)

    assert folder.exists()
    cleaner = StorageCleaner()
    finish(cleaner)
    assert not folder.exists()
    assert kept.exists()
    assert not [*stored_folders_to_delete().glob("run-*")]
    cleaner.tick()
    assert cleaner._command is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["run-{}-0123abcd", "../elsewhere", ""])
def test_a_deleted_run_takes_no_other_folder_with_it(name, run, stored, alice):
    stored(run, name.format(run.pk + 1))
    now = timezone.now()
    Run.objects.update(state="stopped", finished_at=now, trashed_at=now)

    delete_run(run, alice)

    assert not stored_folders_to_delete().exists()
    assert not run_directory(run.pk).path.exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_deleted_is_tried_again(
    settings, tmp_path, monkeypatch
):
    settings.COHORT_RAY_STORAGE = "nosuch://user:p%40ss@host/cohort"
    folder = stored_folders_to_delete()
    folder.mkdir(parents=True)
    (folder / "run-1-0123abcd").touch()
    warning = Mock()
    monkeypatch.setattr(clusters.logger, "warning", warning)
    cleaner = StorageCleaner()

    finish(cleaner)

    [said] = [call.args[1] for call in warning.call_args_list]
    assert "nosuch" in said
    assert "ss@" not in said
    assert (folder / "run-1-0123abcd").exists()
    cleaner.tick()
    assert cleaner._command is None  # not at once
    monkeypatch.setattr(cleaner, "_due", 0.0)
    cleaner.tick()
    assert cleaner._command is not None
    cleaner.stop()


def test_two_workers_read_a_cluster_once():
    assert clusters._claim_due() == A
    assert clusters._claim_due() == ""
    Cluster.objects.update(claimed_at=Now() - timedelta(seconds=31))
    assert clusters._claim_due() == A


def test_a_chosen_cluster_is_read_and_only_while_it_is_allowed(team, settings):
    TeamCluster.objects.create(team=team, address=B)
    assert {clusters._claim_due(), clusters._claim_due()} == {A, B}
    Cluster.objects.update(claimed_at=None)
    settings.COHORT_RAY_TEAM_ADDRESSES = ()

    assert [clusters._claim_due(), clusters._claim_due()] == [A, ""]


def test_an_admin_chooses_among_allowed_clusters(alice_client, team, run, settings):
    run.config["distributed"] = {"where": "ray"}
    assert choose(alice_client, B) == 302
    assert cluster_variables(run)["COHORT_RAY_ADDRESS"] == B
    assert choose(alice_client, "169.254.169.254:80") == 422
    entry = AuditEntry.objects.get(verb="team.cluster_changed")
    assert (entry.detail["before"], entry.detail["after"]) == ("", B)

    settings.COHORT_RAY_TEAM_ADDRESSES = ()

    assert cluster_variables(run)["COHORT_RAY_ADDRESS"] == A
    assert B in page(alice_client)


def test_only_a_run_on_a_cluster_gets_its_address_storage_and_token(
    run, settings, monkeypatch, tmp_path
):
    settings.COHORT_RAY_STORAGE = "s3://bucket"
    given = {
        "COHORT_RAY_ADDRESS": A,
        "COHORT_RAY_STORAGE": "s3://bucket",
        "RAY_AUTH_TOKEN_PATH": "/run/secrets/ray-token",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    command = [
        sys.executable,
        "-c",
        "import json, os; print(json.dumps({**os.environ}))",
    ]

    def trainer_sees() -> dict[str, str]:
        log = tmp_path / f"{len([*tmp_path.iterdir()])}.log"
        with TrainerProcess(command, log=log, variables=cluster_variables(run)) as it:
            it.reap()
        seen = json.loads(log.read_text())
        return {name: seen[name] for name in given if name in seen}

    assert trainer_sees() == {}
    run.config["distributed"] = {"where": "ray"}
    assert trainer_sees() == given


@pytest.mark.parametrize(("num_nodes", "state"), [(2, "starting"), (3, "queued")])
def test_a_run_that_no_cluster_has_room_for_holds_no_worker(
    num_nodes, state, run, monkeypatch
):
    store()  # 16 GPUs, of which 14 are free
    ranks = {"where": "ray", "num_nodes": num_nodes, "num_processes": 8}
    run.config["distributed"] = ranks
    run.save()
    monkeypatch.setattr(tasks, "supervise", Mock())

    tasks.work.apply(throw=True)

    run.refresh_from_db()
    assert run.state == state


def test_members_see_the_cluster_and_cannot_choose(bob_client, team):
    team.memberships.filter(user__username="bob").update(role="member")
    store()

    shown = page(bob_client)

    assert f'data-cluster="{A}"' in shown
    assert "data-gpus-free>14<" in shown
    assert shown.count("data-node=") == 2
    assert 'name="address"' not in shown
    assert choose(bob_client, B) == 403


def test_the_page_says_when_nothing_is_known(alice_client, settings):
    assert "data-cluster-problem" in page(alice_client)
    store(**facts(error="It cannot be reached."))
    assert "It cannot be reached." in page(alice_client)
    store()
    assert "data-cluster-problem" not in page(alice_client)
    Cluster.objects.update(read_at=Now() - timedelta(minutes=3))
    assert "data-cluster-problem" in page(alice_client)
    settings.COHORT_RAY_ADDRESS, settings.COHORT_RAY_TEAM_ADDRESSES = "", ()
    assert "data-cluster=" not in page(alice_client)


@pytest.mark.parametrize("name", ["COHORT_RAY_ADDRESS", "COHORT_RAY_TEAM_ADDRESSES"])
@pytest.mark.parametrize(
    "given", ["http://169.254.169.254:80", "ray-b", "ray-b:0", "ray-b:99999", "a b:1"]
)
def test_an_invalid_cluster_address_is_refused_at_the_start(given, name, monkeypatch):
    monkeypatch.setenv(name, given)
    with pytest.raises(ValueError, match=name):
        read_environment()
