"""Datasets moved to the trash, restored, deleted and purged."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Team
from dashboard.datasets.imports import store_upload
from dashboard.datasets.models import Dataset, DatasetRow, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.datasets.trash import delete_dataset, trash_dataset
from dashboard.jobs.tasks import clean
from dashboard.project.errors import UserError
from dashboard.runs.models import EvaluationSet, Run
from tests.dashboard.analysis.probes.factories import make_probe
from tests.dashboard.completions.factories import make_run
from tests.page_client import words


@pytest.fixture
def dataset(team) -> Dataset:
    return create(team).dataset


def create(team: Team, **changes: Any) -> DatasetVersion:
    given: dict[str, Any] = {
        "name": "Half-sums",
        "rows": [Row(prompt="1+1=")],
        **changes,
    }
    return create_dataset_version(team=team, mapping={}, source={}, user=None, **given)


def post(client: Client, dataset: Dataset, **form: str) -> Any:
    return client.post(f"/alpha/datasets/{dataset.pk}/trash", form)


def test_a_trashed_dataset_is_hidden_in_lists_and_forms(alice_client, dataset):
    for address in ("datasets/", "runs/new", "rewards/new"):
        assert "Half-sums" in words(alice_client.get(f"/alpha/{address}")), address

    post(alice_client, dataset)

    alice_client.get("/alpha/datasets/")  # which says once that it was moved
    for address in ("datasets/", "runs/new", "rewards/new"):
        assert "Half-sums" not in words(alice_client.get(f"/alpha/{address}")), address
    for page in ("statistics", "changes", "split", "leaks"):
        address = f"/alpha/datasets/{dataset.pk}/{page}"
        assert alice_client.get(address).status_code == 404, page
    assert "Half-sums" in words(alice_client.get("/alpha/datasets/trash"))


def test_the_page_of_a_trashed_dataset_shows_who_moved_it(alice_client, dataset):
    post(alice_client, dataset)

    text = words(alice_client.get(f"/alpha/datasets/{dataset.pk}/"))

    assert "the trash" in text
    assert "Alice" in text
    assert "30 days" in text


def test_a_run_that_used_it_still_shows_it(alice_client, team):
    run = make_run(team)
    dataset = run.dataset_version.dataset
    post(alice_client, dataset)

    config = alice_client.get(f"/alpha/runs/{run.pk}/config/")
    assert f'href="/alpha/datasets/{dataset.pk}/"' in config.content.decode()
    text = words(alice_client.get(f"/alpha/datasets/{dataset.pk}/"))
    assert "1 run used it" in text
    assert "Delete permanently" not in text


def test_a_restored_dataset_is_unchanged(alice_client, dataset):
    post(alice_client, dataset)

    post(alice_client, dataset, restore="1", name="Half-sums")

    assert "v1" in words(alice_client.get(f"/alpha/datasets/{dataset.pk}/"))
    dataset.refresh_from_db()
    assert (dataset.trashed_at, dataset.trashed_by) == (None, None)


def test_a_trashed_dataset_frees_its_name(alice_client, team, dataset):
    post(alice_client, dataset)

    new = create(team)

    assert new.dataset != dataset
    answer = post(alice_client, dataset, restore="1", name="Half-sums")
    assert answer.status_code == 422
    post(alice_client, dataset, restore="1", name="Old sums")
    assert "Old sums" in words(alice_client.get("/alpha/datasets/"))


def test_deleting_removes_rows_and_unfinished_uploads(
    alice_client, team, alice, dataset, django_capture_on_commit_callbacks
):
    file = SimpleUploadedFile("rows.jsonl", b'{"prompt": "1+1="}\n')
    upload = store_upload(team=team, user=alice, file=file, dataset=dataset)
    post(alice_client, dataset)

    with django_capture_on_commit_callbacks(execute=True):
        post(alice_client, dataset, delete="1")

    assert not Dataset.objects.exists()
    assert not DatasetRow.objects.exists()
    assert not upload.path.exists()
    verbs = AuditEntry.objects.values_list("verb", flat=True)
    assert {"dataset.trashed", "dataset.deleted"} <= set(verbs)


def test_a_dataset_used_by_a_run_is_not_deleted(alice_client, team):
    dataset = make_run(team).dataset_version.dataset
    post(alice_client, dataset)

    post(alice_client, dataset, delete="1")

    assert Dataset.objects.filter(pk=dataset.pk).exists()
    assert not AuditEntry.objects.filter(verb="dataset.deleted").exists()


@pytest.mark.parametrize("use", ["training", "evaluation", "training and a probe"])
def test_a_dataset_of_a_run_being_deleted_is_not_deleted(alice_client, team, use):
    version = create(team)
    if use == "evaluation":
        run = make_run(team)
        EvaluationSet.objects.create(run=run, name="held", dataset_version=version)
    else:
        run = make_run(team, dataset_version=version)
    if use == "training and a probe":
        make_probe(team, version)
    post(alice_client, version.dataset)
    Run.objects.filter(pk=run.pk).update(deleted_at=timezone.now())

    with pytest.raises(UserError) as refused:
        delete_dataset(version.dataset, None)

    is_probed = use == "training and a probe"
    code = "datasets.in_use" if is_probed else "datasets.run_being_deleted"
    assert refused.value.code == code


@pytest.mark.parametrize("what", ["delete", "restore"])
def test_only_trashed_datasets_are_deleted_or_restored(alice_client, dataset, what):
    assert post(alice_client, dataset, **{what: "1"}).status_code == 404

    delete_dataset(dataset, None)

    assert Dataset.objects.filter(pk=dataset.pk).exists()


def test_no_rows_are_imported_into_the_trash(team, dataset):
    trash_dataset(dataset, None)

    with pytest.raises(UserError) as refused:
        create(team, dataset=dataset, rows=[Row(prompt="2+2=")])
    assert refused.value.code == "datasets.in_trash"


def test_trashing_twice_has_no_effect(dataset):
    assert trash_dataset(dataset, None)
    assert not trash_dataset(dataset, None)


def test_unused_datasets_are_purged_after_a_month(team, dataset):
    used = make_run(team).dataset_version.dataset
    probed = create(team, name="Probed")
    make_probe(team, probed)
    young = create(team, name="Young").dataset
    kept = create(team, name="Kept").dataset
    for one, days in (
        (dataset, 31),
        (used, 31),
        (probed.dataset, 31),
        (young, 29),
    ):
        since = timezone.now() - timedelta(days=days)
        Dataset.objects.filter(pk=one.pk).update(trashed_at=since)

    clean()

    assert set(Dataset.objects.all()) == {used, probed.dataset, young, kept}


def test_a_viewer_is_not_offered_to_restore(bob_client, dataset):
    trash_dataset(dataset, None)

    text = words(bob_client.get(f"/alpha/datasets/{dataset.pk}/"))

    assert "the trash" in text
    assert "Restore" not in text
