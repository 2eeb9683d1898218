"""A curriculum starts from the pass rates of the team's own runs only."""

import json
from typing import Any

import pytest
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from dashboard.supervision.process import write_snapshot
from tests.dashboard.completions.factories import make_run, store_dataset
from tests.dashboard.completions.prompts import MAPPING, ROWS, visit
from tests.dashboard.runs.launching import make_recipe


@pytest.fixture
def form(team) -> dict[str, Any]:
    return {
        "name": "brave-otter",
        "model": "",
        "model_other": "org/model",
        "dataset": store_dataset(team, ROWS, mapping=MAPPING).pk,
        "recipe": make_recipe(team).pk,
        "curriculum.kind": "pools",
        "data.num_eval_rows": "4",
        "confirmed": "on",
    }


@pytest.fixture
def source(team, form) -> Run:
    run = make_run(team, "earlier", dataset_version_id=form["dataset"])
    visit(run, 1, 3, 1)
    return run


def launch(client, form, name) -> Any:
    return client.post("/alpha/runs/new", form | {"curriculum.start_from": name})


def test_the_worker_writes_the_pass_rates_into_the_runs_folder(
    alice_client, form, source
):
    name = f"pass-rates-run-{source.pk}.jsonl"
    page = launch(alice_client, form, name)
    assert page.status_code == 302, page.context["form"].problems
    run = Run.objects.get(name="brave-otter")

    directory = write_snapshot(run)

    config = json.loads(directory.config.read_text())
    assert config["curriculum"]["start_from"] == name
    (line,) = (directory.path / name).read_text().splitlines()
    assert json.loads(line) == {"row": 3, "num_right": 1, "num_scored": 4}


def test_the_pass_rates_stay_those_of_the_first_attempt(alice_client, form, source):
    name = f"pass-rates-run-{source.pk}.jsonl"
    launch(alice_client, form, name)
    run = Run.objects.get(name="brave-otter")
    before = (write_snapshot(run).path / name).read_text()
    visit(source, 2, 3, 4)

    assert (write_snapshot(run).path / name).read_text() == before


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "rows.jsonl",
        "../1/rows.jsonl",
        "pass-rates-run-{pk}.jsonl/../x",
        "pass-rates-run-0.jsonl",
        "pass-rates-run-999999999999999999999.jsonl",
        "pass-rates-run-{pk}9.jsonl",
    ],
)
def test_other_files_are_refused(alice_client, form, source, name):
    response = launch(alice_client, form, name.format(pk=source.pk))

    assert response.status_code == 422
    problems = response.context["form"].problems.by_field
    assert [path for path in problems if problems[path]] == ["curriculum.start_from"]
    assert not Run.objects.filter(name="brave-otter").exists()


def test_runs_of_other_rows_teams_or_the_trash_are_refused(
    alice_client, form, team, source
):
    others = make_run(team, "other-rows")
    foreign = make_run(Team.objects.create(name="Gamma", slug="gamma"), "foreign")
    Run.objects.filter(pk=source.pk).update(trashed_at=timezone.now())

    for run in (others, foreign, source):
        name = f"pass-rates-run-{run.pk}.jsonl"
        assert launch(alice_client, form, name).status_code == 422
