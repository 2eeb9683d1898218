"""A checkpoint's model that new runs start from."""

import shutil
from pathlib import Path

import pytest
from django.db import transaction

from dashboard.accounts.models import AuditEntry, Team
from dashboard.datasets.token_preview import refuse_model
from dashboard.project.errors import UserError
from dashboard.runs.changes import extend_run
from dashboard.runs.checkpoints.files import Damaged
from dashboard.runs.launch.base_models import (
    label_model,
    lock_published,
    offered_models,
)
from dashboard.runs.models import PublishedModel, Run, RunState
from dashboard.supervision.publishing import publish, unpublish
from tests.dashboard.analysis.probes.factories import make_probe, make_version
from tests.dashboard.runs.stories import queue_run
from trainer.config import RunConfig


@pytest.fixture
def model(saving, alice) -> PublishedModel:
    return publish(checkpoint=saving.save(), name=" Sums  v2 ", user=alice)


def test_it_outlives_the_run(model, saving):
    shutil.rmtree(saving.folder.parent)

    assert (model.folder / "model/model.safetensors").read_bytes() == b"weights at 1"
    assert model.name == "Sums v2"
    assert not (model.folder / "manifest.json").exists()


def test_it_is_offered_with_its_lineage(model, team, alice_client):
    (offered,) = [each for each in offered_models(team) if each.path.startswith("/")]

    assert offered.title == f"Sums v2 ({model.run_name}, step 1)"
    assert label_model(offered.path) == offered.title
    html = alice_client.get(f"/alpha/runs/new?model={offered.path}").content.decode()
    assert f'<option value="{offered.path}" selected>Sums v2' in html
    assert offered.path in alice_client.get("/alpha/rewards/new").content.decode()
    assert AuditEntry.objects.filter(verb="model.published").exists()


def test_another_team_cannot_use_the_model(model, charlie, charlie_client):
    other = Team.objects.get(slug="other")
    path = str(model.folder / "model")

    assert offered_models(other) == []
    assert charlie_client.post(f"/other/models/{model.pk}/unpublish").status_code == 404
    with pytest.raises(ValueError, match="has no model"):
        make_probe(other, make_version(other), config=_config(path))
    around = f"{model.folder.parents[1]}/../models/{model.team_id}/{model.pk}/model"
    with pytest.raises(ValueError, match="has no model"):
        lock_published(other, {"model": {"path": around}}, ())


def test_another_teams_checkpoint_cannot_be_used(saving, charlie):
    checkpoint = saving.save()
    path = str(saving.folder / checkpoint.name / "model")

    with pytest.raises(ValueError, match="has no model"):
        lock_published(Team.objects.get(slug="other"), {"model": {"path": path}}, ())
    lock_published(saving.run.team, {"model": {"path": path}}, ())


def test_relative_model_paths_are_refused(team):
    for path in ("../7/checkpoints/step/model", "~/x", "a/../../7"):
        judge = {"name": "judge", "kind": "reward_model", "params": {"path": path}}
        config = {"reward": {"recipe": {"rules": [judge]}}}

        with pytest.raises(ValueError, match="no model"):
            lock_published(team, config, ())


def test_it_stays_while_a_run_needs_it(model, team, alice):
    needing = queue_run(team, name="second")
    needing.config["model"]["path"] = str(model.folder / "model")
    needing.save()

    with pytest.raises(ValueError, match=rf"second \(run {needing.pk}, queued\)"):
        unpublish(model=model, user=alice)

    Run.objects.filter(pk=needing.pk).update(state=RunState.STOPPED)
    unpublish(model=model, user=alice)
    assert not PublishedModel.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_unpublishing_deletes_the_files(model, team, alice):
    folder = model.folder
    unpublish(model=model, user=alice)

    assert not folder.exists()
    with transaction.atomic(), pytest.raises(ValueError, match="has no model"):
        lock_published(team, {"model": {"path": str(folder / "model")}}, ())


def test_a_name_is_taken_once(model, saving, alice):
    with pytest.raises(UserError) as raised:
        publish(checkpoint=saving.save(), name="Sums v2", user=alice)
    assert raised.value.code == "models.name_taken"

    assert sorted(path.name for path in model.folder.parent.iterdir()) == [
        str(model.pk)
    ]


def test_odd_names_are_refused(alice_client, saving):
    checkpoint = saving.save()
    address = f"/alpha/runs/{saving.run.pk}/checkpoints/{checkpoint.name}/publish"

    for name in ("", "   ", "x" * 81, "a\x00b", "a\u202eb"):
        response = alice_client.post(address, {"name": name}, follow=True)

        assert response.status_code == 200
        assert "1 to 80" in response.text
    assert not PublishedModel.objects.exists()


def test_a_name_is_only_a_name(saving, alice, data_folder):
    model = publish(checkpoint=saving.save(), name="../../../etc", user=alice)

    assert model.folder == data_folder / "models" / str(model.team_id) / str(model.pk)


def test_damaged_weights_are_not_published(saving, alice):
    checkpoint = saving.save()
    path = saving.folder / checkpoint.name / "model/model.safetensors"
    path.write_bytes(b"weights at 2")

    with pytest.raises(Damaged):
        publish(checkpoint=checkpoint, name="Sums", user=alice)

    assert not PublishedModel.objects.exists()


def test_the_list_of_models_shows_runs_that_need_one(alice_client, model, team):
    needing = queue_run(team, name="second")
    needing.config["model"]["path"] = str(model.folder / "model")
    needing.save()

    html = alice_client.get("/alpha/models/").content.decode()

    assert "Sums v2" in html
    assert ">second</a>" in html


def _config(path: str) -> RunConfig:
    recipe = {"rules": [{"name": "r", "kind": "numeric_answer", "weight": 1.0}]}
    return RunConfig.model_validate(
        {
            "model": {"path": path},
            "data": {"rows": "rows.jsonl", "num_eval_rows": 0},
            "reward": {"recipe": recipe},
        }
    )


def test_the_page_reads_the_runs_once(
    saving, alice, alice_client, django_assert_max_num_queries
):
    checkpoint = saving.save()
    for name in "abcdefgh":
        publish(checkpoint=checkpoint, name=name, user=alice)

    with django_assert_max_num_queries(10):
        page = alice_client.get("/alpha/models/")

    assert page.status_code == 200


def test_a_run_with_a_deleted_model_cannot_be_extended(model, saving, alice):
    own = saving.run
    own.config["model"]["path"] = str(model.folder / "model")
    ended = {"state": RunState.STOPPED, "finished_at": own.created_at}
    Run.objects.filter(pk=own.pk).update(config=own.config, **ended)
    unpublish(model=model, user=alice)

    with pytest.raises(ValueError, match="has no model"):
        extend_run(run=own, user=alice, num_steps=500)

    assert Run.objects.get(pk=own.pk).state == RunState.STOPPED


def test_a_folder_outside_the_operators_is_refused(team, settings, tmp_path):
    allowed = tmp_path / "models"
    (allowed / "qwen").mkdir(parents=True)
    (allowed / "detour").symlink_to(tmp_path)
    settings.MODEL_FOLDERS = (allowed,)
    own = f"{settings.COHORT_DATA}/starter/sums/model"

    for path in (f"{allowed}/qwen", own, "Qwen/Qwen2.5-0.5B-Instruct"):
        lock_published(team, {"model": {"path": path}}, ())
        assert refuse_model(team, path) == ""
    for path in ("/etc", f"{tmp_path}", f"{allowed}/../x", f"{allowed}/detour/x"):
        assert refuse_model(team, path)
        with pytest.raises(ValueError, match="COHORT_MODEL_FOLDERS"):
            lock_published(team, {"model": {"path": path}}, ())


def test_the_data_folder_is_reached_by_run_or_model_only(team, settings, saving):
    data, run = settings.COHORT_DATA, saving.run.pk
    settings.MODEL_FOLDERS = (Path("/"),)

    for path in (
        f"{data}", f"{data}/uploads/1", f"{data}/starter", f"{data}/starter/../x/model",
        f"{data}/runs/{run}", f"{data}/runs/{run}/x/model", str(Path(data).parent),
        f"{data}/run-imports/1/model",
    ):  # fmt: skip
        assert refuse_model(team, path), path
        with pytest.raises(ValueError, match=r"has no model|not allowed"):
            lock_published(team, {"model": {"path": path}}, ())
    for path in (f"{data}/runs/{run}/kept/step-1/model", f"{data}/starter/sums/model"):
        assert refuse_model(team, path) == ""
        lock_published(team, {"model": {"path": path}}, ())
