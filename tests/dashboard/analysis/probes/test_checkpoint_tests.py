"""A try: a checkpoint and its base model sample the same prompt."""

import json
import shutil
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from dashboard.accounts.models import Team
from dashboard.analysis.probes.jobs import probe_command, write_snapshot
from dashboard.analysis.probes.models import Probe, ProbeGroup
from dashboard.datasets.models import DatasetRow
from dashboard.jobs.tasks import clean
from dashboard.runs.checkpoints.files import CheckpointStore
from dashboard.runs.checkpoints.retention import NOTHING
from dashboard.runs.models import Checkpoint, Run
from dashboard.supervision.models import Worker
from tests.dashboard.analysis.probes.factories import (
    completion,
    finish,
    make_probe,
    make_version,
)
from tests.dashboard.analysis.probes.trained import train_checkpoint
from tests.dashboard.jobs.working import do, take
from tests.dashboard.runs.checkpoints.saved import Saving
from tests.dashboard.runs.launching import make_recipe
from tests.dashboard.runs.stories import queue_run
from tests.dashboard.supervision.machines import make_worker

SETTINGS = {
    "num_samples": "2",
    "temperature": "0.7",
    "max_new_tokens": "8",
    "seed": "1",
    "row": "0",
}


@pytest.fixture
def saving(team) -> Saving:
    story = Saving(queue_run(team))
    story.start()
    return story


@pytest.fixture
def checkpoint(saving) -> Checkpoint:
    saved = saving.save()
    version = saving.run.dataset_version
    DatasetRow.objects.get_or_create(
        version=version, position=0, defaults={"prompt": "1+1=", "answer": "2"}
    )
    return saved


def press_try(client: Client, checkpoint: Checkpoint, **changes: str) -> Probe:
    address = f"/alpha/runs/{checkpoint.run_id}/try/"
    sent = client.post(address, {"checkpoint": checkpoint.name, **SETTINGS, **changes})
    assert sent.status_code == 302, sent.content.decode()
    return Probe.objects.latest("pk")


def work(probe: Probe) -> Probe:
    do(take("probe"))
    probe.refresh_from_db()
    return probe


@pytest.mark.slow
def test_a_checkpoint_with_adapters_is_sampled_beside_its_base_model(
    saving, alice_client, tmp_path
):
    checkpoint = train_checkpoint(saving, tmp_path, lora_rank=4)

    probe = work(press_try(alice_client, checkpoint, prompt="1+1=", num_samples="3"))

    assert (probe.state, probe.error, probe.num_done) == ("done", "", 2)
    own, base = probe.groups.order_by("pk")
    assert (own.is_base, base.is_base) == (False, True)
    assert len(own.completions) == len(base.completions) == 3
    assert own.completions != base.completions
    assert base.completions[0]["rules"].keys() == {"digits"}


def test_the_trainer_gets_the_checkpoint_and_the_typed_prompt(
    checkpoint, alice_client, tmp_path
):
    probe = press_try(alice_client, checkpoint, prompt="2+2=", recipe="none")

    command = probe_command(probe, tmp_path)
    write_snapshot(probe, tmp_path / "files")

    found = CheckpointStore(checkpoint.run_id).find(checkpoint.name)
    assert command[command.index("--checkpoint") + 1] == str(found)
    assert "--no-scores" in command
    row = json.loads((tmp_path / "files" / "rows.jsonl").read_text())
    assert (row["prompt"], row["answer"]) == ("2+2=", None)
    config = json.loads((tmp_path / "files" / "probe.json").read_text())
    assert config["model"] == probe.config["model"]
    assert config["rollout"]["temperature"] == 0.7


def test_a_checkpoint_is_sampled_with_its_runs_options(checkpoint, alice_client):
    run = Run.objects.get(pk=checkpoint.run_id)
    options = {"min_p": 0.1, "repetition_penalty": 1.1, "stop": ["</answer>"]}
    run.config["rollout"] = {**run.config["rollout"], **options}
    run.save(update_fields=["config"])

    probe = press_try(alice_client, checkpoint)

    assert probe.config["rollout"].items() >= options.items()


def test_a_checkpoint_is_tried_in_its_runs_environment(checkpoint, alice_client):
    run = Run.objects.get(pk=checkpoint.run_id)
    game = {"kind": "guess", "max_tokens": 9_000}
    run.config["environment"] = {**run.config["environment"], **game}
    run.save(update_fields=["config"])

    probe = press_try(alice_client, checkpoint)

    assert probe.config["environment"] == run.config["environment"]


def test_a_queued_checkpoint_test_keeps_its_checkpoint(checkpoint, alice_client):
    store = CheckpointStore(checkpoint.run_id)
    Run.objects.filter(pk=checkpoint.run_id).update(best_by=NOTHING)
    press_try(alice_client, checkpoint)

    shutil.rmtree(store.own / checkpoint.name)  # as the trainer does

    assert store.find(checkpoint.name) == store.kept / checkpoint.name
    clean()
    assert store.kept_names() == {checkpoint.name}
    finish(num_done=2)
    clean()
    assert store.kept_names() == set()


def test_the_form_starts_with_the_runs_settings(checkpoint, alice_client):
    run = Run.objects.get(pk=checkpoint.run_id)
    run.config["rollout"] = {"temperature": 0.4, "max_new_tokens": 99, "group_size": 40}
    run.save(update_fields=["config"])

    page = alice_client.get(f"/alpha/runs/{run.pk}/try/")

    shown = page.context["form"].data
    assert (shown["temperature"], shown["max_new_tokens"]) == (0.4, 99)
    assert (shown["num_samples"], shown["row"]) == (16, 0)


def test_a_random_row_gets_an_address_of_its_own(checkpoint, alice_client):
    at = f"/alpha/runs/{checkpoint.run_id}/try/"
    version = Run.objects.get(pk=checkpoint.run_id).dataset_version
    assert version is not None

    moved = alice_client.get(f"{at}?row=random&seed=7")
    page = alice_client.get(moved["Location"])

    assert moved.status_code == 302
    assert 0 <= int(page.context["form"].data["row"]) < version.num_rows
    assert page.context["form"].data["seed"] == "7"
    shown = alice_client.get(f"{at}?row=0").context["form"].row_shown
    assert (shown.question, shown.position) == ("1+1=", 0)
    assert alice_client.get(f"{at}?row=-1").context["form"].row_shown is None


def test_the_page_names_the_worker_that_it_waits_for(checkpoint, alice_client):
    at = f"/alpha/runs/{checkpoint.run_id}/try/"
    run = Run.objects.get(pk=checkpoint.run_id)
    none = alice_client.get(at).context["wait"]
    worker = make_worker(run.worker)
    busy = alice_client.get(at).context["wait"]
    Worker.objects.filter(pk=worker.pk).update(num_slots=2)
    free = alice_client.get(at).context["wait"]

    assert none != busy
    assert none != ""
    assert run.worker in busy
    assert free == ""


def test_a_test_of_another_run_is_not_shown(checkpoint, alice_client, team):
    probe = press_try(alice_client, checkpoint)
    other = queue_run(team)

    for given in (probe.pk, "x", "9" * 30):
        shown = alice_client.get(f"/alpha/runs/{other.pk}/try/?probe={given}")
        assert "probe" not in (shown.context or {}), given


def test_the_settings_of_a_phase_are_those_of_its_checkpoints(checkpoint, alice_client):
    run = Run.objects.get(pk=checkpoint.run_id)
    cool = {"rollout": {"temperature": 0.3}}
    run.config["optim"] = {"num_steps": 5}
    run.config["phases"] = [
        {"name": "warm", "num_steps": 2},
        {"name": "cool", "num_steps": 3, "changes": cool},
    ]
    run.save(update_fields=["config"])
    Checkpoint.objects.update(step=3)

    page = alice_client.get(f"/alpha/runs/{run.pk}/try/")

    assert page.context["form"].data["temperature"] == 0.3


def test_a_recipe_of_the_team_scores_in_place_of_the_runs(
    checkpoint, alice_client, team, charlie
):
    recipe = make_recipe(team, name="Other")
    foreign = make_recipe(Team.objects.get(slug="other"))

    probe = press_try(alice_client, checkpoint, recipe=str(recipe.pk))
    refused = alice_client.post(
        f"/alpha/runs/{checkpoint.run_id}/try/",
        {"checkpoint": checkpoint.name, **SETTINGS, "recipe": str(foreign.pk)},
    )

    assert probe.recipe_version == recipe
    (rule,) = probe.config["reward"]["recipe"]["rules"]
    assert rule["kind"] == "numeric_answer"
    assert refused.status_code == 422
    assert Probe.objects.count() == 1


def test_both_sides_are_shown_and_another_prompt_keeps_the_settings(
    checkpoint, alice_client
):
    probe = press_try(alice_client, checkpoint)
    texts = [completion("<b>2", 1.0), completion("3", 0.0, end_reason="length")]
    both = {"probe": probe, "position": 0}
    ProbeGroup.objects.create(**both, completions=texts)
    ProbeGroup.objects.create(**both, is_base=True, completions=[completion("4", None)])
    finish(num_done=2)

    page = alice_client.get(f"/alpha/probes/{probe.pk}/", follow=True)
    own, base = page.context["sides"]
    form = page.context["form"]

    assert (own["reward"], own["num_cut"], own["tokens"]) == (0.5, 1, 2.5)
    assert (base["reward"], base["num_scored"]) == (None, 0)
    assert "&lt;b&gt;2" in page.content.decode()
    assert page.redirect_chain == [
        (f"/alpha/runs/{checkpoint.run_id}/try/?probe={probe.pk}", 302)
    ]
    kept = SETTINGS | {"checkpoint": checkpoint.name}
    assert {name: str(form.data[name]) for name in kept} == kept
    assert [test.pk for test in page.context["tests"]] == [probe.pk]


def test_a_row_or_a_prompt_is_required(checkpoint, alice_client):
    address = f"/alpha/runs/{checkpoint.run_id}/try/"
    sent = {"checkpoint": checkpoint.name, **SETTINGS}
    wrong: list[dict[str, str]] = [
        {"row": "100"},
        {"row": "", "prompt": " "},
        {"num_samples": "17"},
        {"temperature": "0"},
        {"checkpoint": "step-000099-attempt-1"},
    ]
    for changes in wrong:
        assert alice_client.post(address, sent | changes).status_code == 422, changes

    assert not Probe.objects.exists()


def test_a_link_to_a_deleted_checkpoint_offers_the_best_without_errors(
    saving, checkpoint, alice_client
):
    newer = saving.save(reward=0.9)
    address = f"/alpha/runs/{checkpoint.run_id}/try/"
    store = CheckpointStore(checkpoint.run_id)
    store.remove(checkpoint.name)

    page = alice_client.get(address, {"checkpoint": checkpoint.name})
    sent = alice_client.post(address, {**SETTINGS, "checkpoint": checkpoint.name})

    form = page.context["form"]
    assert (form.deleted, form.data["checkpoint"]) == (checkpoint.name, newer.name)
    assert "field-error" not in page.content.decode()
    assert f'data-deleted="{checkpoint.name}"' in page.content.decode()
    assert (sent.status_code, list(sent.context["form"].errors)) == (
        422,
        ["checkpoint"],
    )

    store.remove(newer.name)
    for query in ({}, {"checkpoint": newer.name}):
        html = alice_client.get(address, query).content.decode()
        assert "try-form" not in html, query
        assert "field-error" not in html, query


def test_deleted_checkpoint_files_fail_the_probe(checkpoint, alice_client):
    probe = press_try(alice_client, checkpoint)
    CheckpointStore(checkpoint.run_id).remove(checkpoint.name)

    work(probe)

    assert probe.state == "failed"
    assert checkpoint.name in probe.error
    page = alice_client.get(f"/alpha/probes/{probe.pk}/", follow=True)
    assert checkpoint.name in page.context["probe"].error
    assert page.status_code == 200


def test_the_editor_does_not_list_checkpoint_tests(checkpoint, alice_client, team):
    tried = press_try(alice_client, checkpoint)
    probe = make_probe(team, make_version(team))

    page = alice_client.get(reverse("reward_new", args=["alpha"]), {"probe": tried.pk})

    offered = page.context["choice"].fields["probe"].queryset
    assert list(offered) == [probe]
    assert page.context["chosen"]["probe"] is None


def test_another_teams_checkpoint_is_never_sampled(checkpoint, charlie):
    other_team = Team.objects.get(slug="other")
    checkpoint = Checkpoint.objects.select_related("run").get(pk=checkpoint.pk)
    version: Any = make_version(other_team)

    with pytest.raises(AssertionError):
        make_probe(other_team, version, checkpoint=checkpoint)


def test_without_a_checkpoint_a_probe_scores_rows(team):
    probe = make_probe(team, make_version(team))

    for wrong in ({"prompt": "1+1="}, {"is_scored": False}, {"positions": []}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Probe.objects.filter(pk=probe.pk).update(**wrong)
