"""A team over its quota gets an error when it adds more."""

import os
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.datasets.row import Row
from dashboard.datasets.uploads import begin_transfer
from dashboard.operations.models import Quota, Use
from dashboard.operations.quotas import measure
from dashboard.operations.retention import measure_all
from dashboard.project.errors import UserError
from dashboard.runs.changes import extend_run
from dashboard.runs.models import Run
from dashboard.runs.queries import run_directory
from dashboard.transfers.import_files import begin_file
from dashboard.transfers.models import RunImport
from tests.dashboard.completions.factories import (
    make_checkpoint,
    make_run,
    store_dataset,
)
from tests.dashboard.runs.launching import make_dataset, make_recipe
from tests.dashboard.runs.test_clone import _fields


@pytest.fixture(autouse=True)
def data(tmp_path, settings) -> Path:
    settings.COHORT_DATA = tmp_path
    return tmp_path


@pytest.fixture
def full(team) -> Quota:
    """The team has 3,000 bytes of 3,000."""
    Use.objects.create(team=team, parts={"runs": 3_000}, measured_at=timezone.now())
    return Quota.objects.create(team=team, max_bytes=3_000)


def begin(team: Team, user: User, num_bytes: int) -> object:
    return begin_transfer(
        team=team,
        user=user,
        filename="rows.jsonl",
        num_bytes=num_bytes,
        fingerprint="",
        dataset=None,
    )


def test_files_models_and_rows_are_measured_once_each(team):
    run = make_run(team)
    folder = run_directory(run.pk).path
    (folder / "checkpoints/step-1").mkdir(parents=True)
    (folder / "kept").mkdir()
    (folder / "checkpoints/step-1/a").write_bytes(b"x" * 1_000)
    os.link(folder / "checkpoints/step-1/a", folder / "kept/a")
    team.published_models.create(
        name="M", run_name="r", step=1, sha256="ab" * 32, num_bytes=500
    )
    before = measure(team).parts["datasets"]
    store_dataset(
        team,
        [Row(prompt="é" * 10, answer="x" * 5, columns={})],
        name="Numbers",
        mapping={"prompt": "p"},
    )

    measure_all()

    parts = Use.objects.get(team=team).parts
    assert parts["runs"] == 1_000
    assert parts["models"] == 500
    assert parts["datasets"] - before == 20 + 5 + len("{}")


def test_a_file_that_fits_is_taken_and_one_byte_more_is_not(team, alice, full):
    Quota.objects.update(max_bytes=3_100)
    begin(team, alice, 100)

    with pytest.raises(ValueError, match=r"3\.03 KiB of its 3\.03 KiB"):
        begin(team, alice, 101)


def test_nothing_is_added_to_a_full_team(team, alice, alice_client, full):
    run_import = RunImport.objects.create(team=team)

    with pytest.raises(UserError) as raised:
        store_dataset(
            team, [Row(prompt="1", answer=None, columns={})], name="D", user=alice
        )
    assert raised.value.code == "quotas.storage"
    with pytest.raises(UserError) as raised:
        begin_file(run_import, filename="steps.jsonl", num_bytes=10, fingerprint="")
    assert raised.value.code == "quotas.storage"
    file = SimpleUploadedFile("rows.jsonl", b'{"prompt": "1"}\n')
    page = alice_client.post("/alpha/datasets/upload", {"file": file})
    assert "needs 16 B" in page.text.replace("&nbsp;", " ")
    assert not team.uploads.exists()


def test_without_a_quota_nothing_is_refused(team, alice):
    begin(team, alice, 10**9)


def test_a_run_more_than_the_team_may_have_is_refused(team, alice):
    Quota.objects.create(team=team, max_runs=1)
    done = make_run(team, "done", state="finished", last_step=200)
    make_checkpoint(done, 200)
    make_run(team, "at-work", state="queued", finished_at=None)

    with pytest.raises(UserError) as raised:
        extend_run(run=done, user=alice, num_steps=300)
    assert raised.value.code == "quotas.runs"

    Run.objects.filter(name="at-work").update(
        state="stopped", finished_at=timezone.now() + timedelta(hours=1)
    )
    extend_run(run=done, user=alice, num_steps=300)
    done.refresh_from_db()
    assert done.state == "queued"


def test_a_sweep_beyond_the_quota_launches_none_of_its_runs(alice_client, team):
    Quota.objects.create(team=team, max_runs=2)
    make_dataset(team)
    make_recipe(team)
    fields = _fields(alice_client.get("/alpha/runs/new").text)
    fields |= {"model_other": "org/model", "model": "", "name": "brave-otter"}
    sweep = {"sweep-1-path": "seed", "sweep-1-values": "0..2"}

    page = alice_client.post("/alpha/runs/new", fields | sweep)

    assert page.status_code == 422
    assert "its quota is 2" in page.text
    assert not Run.objects.exists()


def test_quota_changes_have_audit_entries(team):
    output = StringIO()

    call_command("quota", "alpha", "--storage", "1.5GiB", "--runs", "4", stdout=output)

    quota = Quota.objects.get(team=team)
    assert (quota.max_bytes, quota.max_runs) == (1_610_612_736, 4)
    for used in ("0 B of 1.5 GiB", "0 of 4"):
        assert used in output.getvalue()
    assert AuditEntry.objects.filter(verb="team.quota_changed").count() == 1
    call_command("quota", "alpha", "--storage", "none", stdout=StringIO())
    quota.refresh_from_db()
    assert (quota.max_bytes, quota.max_runs) == (None, 4)


def test_an_invalid_quota_is_rejected(team):
    for options, message in (
        (["nobody"], "'nobody'.*alpha"),
        (["alpha", "--storage", "much"], "got 'much'"),
        (["alpha", "--runs", "-1"], "got '-1'"),
    ):
        with pytest.raises(CommandError, match=message):
            call_command("quota", *options)
    assert not Quota.objects.exists()


def test_the_page_shows_use_and_quota(alice_client, full):
    page = alice_client.get("/alpha/settings/storage")

    assert page.status_code == 200
    assert "2.93 KiB of 2.93 KiB" in page.text
    assert "quota is reached" in page.text
