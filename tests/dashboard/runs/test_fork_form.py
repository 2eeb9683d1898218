"""The launch form as a fork's: what it says, what it keeps, and what it refuses."""

import hashlib
import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.templatetags.numbers import duration, si
from dashboard.runs.launch.launching import FIXED
from dashboard.runs.models import Checkpoint, Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.queue.estimates import Pace
from tests.dashboard.completions.factories import make_checkpoint
from tests.dashboard.runs.launching import (
    make_config,
    make_dataset,
    make_recipe,
    make_run,
)
from tests.dashboard.runs.test_clone import _fields
from tests.dashboard.supervision.checkpoints import save

NAME = "step-000040-attempt-1"


@pytest.fixture
def parent(team, alice, settings, tmp_path) -> Run:
    settings.COHORT_DATA = tmp_path
    config = make_config(
        model={"path": "org/other", "lora_rank": 8},
        optim={"num_steps": 77, "learning_rate": 2.5e-5, "schedule": "linear"},
    )
    run = make_run(
        team,
        "amber-otter",
        dataset=make_dataset(team),
        recipe=make_recipe(team),
        owner=alice,
        config=config,
        state=RunState.FINISHED,
    )
    path = save(run_directory(run.id), 40)
    make_checkpoint(
        run,
        40,
        name=NAME,
        sha256=hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest(),
        num_bytes=9,
    )
    return run


def address(run: Run, name: str = NAME) -> str:
    return f"/alpha/runs/new?fork={run.pk}&checkpoint={name}"


def send(client: Client, run: Run, **changes: Any) -> Any:
    fields = _fields(client.get(address(run)).text)
    return client.post("/alpha/runs/new", fields | changes)


def test_the_fork_form_shows_parent_and_fixed_settings(alice_client, parent):
    answer = alice_client.get(address(parent))
    page = unescape(answer.text)

    assert f'href="/alpha/runs/{parent.pk}/">amber-otter</a>' in page
    assert page.count("Fixed by the fork<") == len(FIXED) - 1  # but the model
    assert f"</strong>: {FIXED['model.lora_rank']}" in page
    steps = answer.context["summary"].hints[0]
    assert re.findall(r"\d+", steps) == ["41", "77"]
    assert steps in page
    assert 'select" id="field-start"' not in page  # another preset is no fork


def test_the_estimate_of_a_fork_counts_only_the_steps_that_are_left(
    alice_client, parent, monkeypatch
):
    pace = Pace(device="", step_seconds=10.0, num_runs=1)
    monkeypatch.setattr("dashboard.runs.launch.page.past_paces", lambda *_: [pace])
    parent.config["evaluation"]["every_steps"] = 20
    parent.config["data"]["num_eval_rows"] = 1
    parent.config["checkpoint"]["every_steps"] = 20
    parent.config["rollout"] |= {"prompts_per_step": 4, "group_size": 8}
    parent.save(update_fields=["config"])

    summary = alice_client.get(address(parent)).context["summary"]

    amounts = {one.title: one for one in summary.amounts}
    # Of 77 steps, 40 are done.
    assert amounts["Updates"].value == "37"
    assert amounts["Total completions"].value == si(37 * 32)
    assert amounts["Evaluations"].value == "2"  # at 60 and 77
    assert amounts["Checkpoints"].value == "2"
    assert duration(370) in amounts["Time per step"].how
    num_train = parent.dataset_version.num_rows - 1
    assert float(amounts["Epochs"].value) == pytest.approx(37 * 4 / num_train, rel=0.1)
    assert f"About {duration(370)}" in summary.line
    assert "37 steps × 32 completions" in summary.line


def test_a_fork_sent_as_it_is_has_the_settings_of_its_parent(alice_client, parent):
    response = send(alice_client, parent)

    child = Run.objects.latest("pk")
    assert response.status_code == 302
    assert child.config == parent.config
    assert (child.forked_from, child.fork_step) == (parent, 40)
    assert child.fork_checkpoint == NAME
    assert child.cloned_from is None
    assert (run_directory(child.id).checkpoints / "step-000040-attempt-0").is_dir()


def test_settings_outside_the_checkpoint_may_change(alice_client, team, parent):
    other = make_dataset(team, "products")

    send(
        alice_client,
        parent,
        dataset=str(other.pk),
        **{"optim.learning_rate": "1e-5", "optim.num_steps": "90"},
    )

    child = Run.objects.latest("pk")
    assert child.forked_from == parent
    assert child.dataset_version == other
    assert (child.num_steps, child.config["optim"]["learning_rate"]) == (90, 1e-5)


def problems(response: Any) -> dict[str, str]:
    """Where each stands, and what it says."""
    by_field = response.context["form"].problems.by_field
    return {
        control: " ".join(messages)
        for control, messages in by_field.items()
        if messages
    }


def test_settings_of_the_checkpoint_cannot_change(alice_client, parent):
    fixed = {
        "model.lora_rank": "16",
        "model.dtype": "float32",
        "optim.optimizer": "adamw_8bit",
    }

    other = send(alice_client, parent, model_other="org/third", **fixed)
    no_further = send(alice_client, parent, **{"optim.num_steps": "40"})

    refused = problems(other)
    assert refused.keys() == {"model", *fixed}
    assert FIXED["model.path"] in refused["model"]
    assert all(FIXED[path] in refused[path] for path in fixed)
    assert problems(no_further).keys() == {"optim.num_steps"}
    assert {other.status_code, no_further.status_code} == {422}
    assert Run.objects.count() == 1


def test_started_phases_cannot_change(alice_client, parent):
    parent.config["phases"] = [
        {"name": "warm", "num_steps": 20, "changes": {}},
        {"name": "main", "num_steps": 57, "changes": {}},
    ]
    parent.save()
    later = '[[phases]]\nname = "warm"\nnum_steps = {}\n\n[[phases]]\nname = "main"\n'
    later += "num_steps = {}\n"
    steps = {"optim.num_steps": "90"}

    refused = send(alice_client, parent, phases=later.format(30, 60), **steps)
    longer = send(alice_client, parent, phases=later.format(20, 70), **steps)

    assert "warm from step 1, main" in problems(refused)["phases"]
    assert longer.status_code == 302


def test_a_change_of_the_schedule_and_of_the_data_is_shown_before_the_launch(
    alice_client, team, parent
):
    other = make_dataset(team, "products")
    fields = _fields(alice_client.get(address(parent)).text)
    fields |= {"dataset": str(other.pk), "optim.num_steps": "200"}

    answer = alice_client.post("/alpha/runs/new/summary", fields)

    _, rates, rows, *_ = answer.context["summary"].hints
    assert re.findall(r"[\d.]+e-5|amber-otter", rates)[:3] == [
        "2e-5",
        "amber-otter",
        "1.18e-5",
    ]
    assert "products v1" in rows
    assert rows in unescape(answer.text)


def test_a_fork_without_files_is_refused_and_nothing_is_launched(alice_client, parent):
    folder = run_directory(parent.id).checkpoints
    (folder / NAME).rename(folder / "superseded")

    response = send(alice_client, parent)

    assert response.status_code == 422
    assert NAME in response.context["form"].problems.general[0]
    assert Run.objects.count() == 1


def test_a_checkpoint_that_was_never_saved_launches_nothing(alice_client, parent):
    fields = _fields(alice_client.get(address(parent)).text)
    Checkpoint.objects.all().delete()

    response = alice_client.post("/alpha/runs/new", fields)

    assert response.status_code == 422
    assert NAME in response.context["refused"]
    assert Run.objects.count() == 1


def test_concurrent_forks_both_succeed(alice_client, parent):
    send(alice_client, parent)
    send(alice_client, parent)

    assert Run.objects.filter(forked_from=parent).count() == 2


def test_viewers_and_other_teams_cannot_fork(bob_client, charlie_client, parent):
    tab = f"/alpha/runs/{parent.id}/checkpoints/"

    assert bob_client.get(address(parent)).status_code == 403
    assert "?fork=" not in bob_client.get(tab).text
    assert charlie_client.get(address(parent)).status_code == 404
    other = address(parent).replace("alpha", "other")
    assert charlie_client.get(other).status_code == 404


def test_the_checkpoints_tab_offers_to_fork_from_what_is_kept(alice_client, parent):
    tab = f"/alpha/runs/{parent.id}/checkpoints/"
    link = 'aria-label="Fork from step 40"'
    kept = alice_client.get(tab).text
    folder = run_directory(parent.id).checkpoints
    (folder / NAME).rename(folder / "superseded")

    assert link in kept
    assert link not in alice_client.get(tab).text
