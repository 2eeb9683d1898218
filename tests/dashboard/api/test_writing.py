"""What programs change: through the same services as pages."""

from pathlib import Path
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile

from dashboard.accounts.models import AuditEntry, Team
from dashboard.datasets.models import Dataset, DatasetVersion
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Run
from tests.dashboard.api.asking import BASE, Program
from tests.dashboard.completions.factories import RULES, make_recipe, make_run

LINES = b'{"question": "1+1=", "answer": "2"}\n{"question": "2+2=", "answer": "4"}\n'


def upload(program: Program, data: bytes = LINES, **fields: Any) -> Any:
    headers = {**program.headers, **fields.pop("headers", {})}
    file = SimpleUploadedFile("sums.jsonl", data)
    return program.client.post(
        f"{BASE}/imports", {"file": file, **fields}, headers=headers
    )


def test_a_file_becomes_a_dataset(program, team):
    made = upload(program)

    assert made.status_code == 201, made.text
    version = made.json()["version"]
    assert version["dataset"] == "sums"
    assert version["mapping"]["prompt"] == "question"
    rows = program.get(f"/dataset-versions/{version['id']}/rows").json()
    assert [(r["prompt"], r["answer"]) for r in rows["items"]] == [
        ("1+1=", "2"),
        ("2+2=", "4"),
    ]
    assert rows["total"] == 2


def test_a_file_becomes_the_next_version(program):
    first = upload(program).json()["version"]

    second = upload(program, LINES + LINES[:36], dataset_id=first["dataset_id"]).json()

    assert second["version"]["number"] == 2
    listed = program.get(f"/datasets/{first['dataset_id']}/versions").json()
    assert [each["number"] for each in listed["items"]] == [2, 1]


def test_an_upload_is_sent_twice_and_imported_once(program):
    key = {"Idempotency-Key": "b7"}

    found = [upload(program, headers=key) for _ in range(2)]

    assert [each.status_code for each in found] == [201, 201]
    assert found[0].json() == found[1].json()
    assert DatasetVersion.objects.count() == 1


def test_a_bad_row_refuses_all_and_leaves_no_file(program):
    refused = upload(program, LINES + b'{"question": 5\n')

    assert refused.status_code == 422
    assert "leave_out: 1" in refused.json()["detail"]
    assert refused.json()["errors"][0]["message"].startswith("Line 3")
    assert not Dataset.objects.exists()


def test_a_fault_of_our_own_leaves_no_file(program, monkeypatch, settings):
    monkeypatch.setattr("dashboard.api.dataset_imports.peek", None)
    uploads = Path(settings.COHORT_DATA) / "uploads"
    before = set(uploads.glob("*"))

    assert upload(program).status_code == 500

    assert set(uploads.glob("*")) == before


def test_a_column_that_is_not_there_is_named(program):
    refused = upload(program, prompt="nothing")

    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "form.prompt"


def test_a_recipe_is_made_and_gets_versions(program, team):
    spec = {"rules": [RULES[0]]}
    made = program.post("/recipes", {"name": "right", "spec": spec})
    recipe_id = made.json()["recipe_id"]
    more = program.post(f"/recipes/{recipe_id}/versions", {"spec": {"rules": RULES}})

    assert (made.status_code, more.status_code) == (201, 201)
    assert [made.json()["number"], more.json()["number"]] == [1, 2]
    assert RecipeVersion.objects.count() == 2


def test_an_invalid_recipe_names_its_field(program):
    refused = program.post(
        "/recipes", {"name": "x", "spec": {"rules": [{"name": "a"}]}}
    )

    assert refused.status_code == 422
    fields = [error["field"] for error in refused.json()["errors"]]
    assert any(field.startswith("body.spec.rules.0") for field in fields)
    assert not RecipeVersion.objects.exists()


def test_odd_characters_and_unknown_fields_are_refused(program):
    for body in [
        {"name": "a\x00b", "spec": {}},
        {"name": "\ud800", "spec": {}},
        {"nam": "x"},
    ]:
        assert program.post("/recipes", body).status_code == 422, body


def launchable(program: Program, team: Team) -> dict[str, Any]:
    version = upload(program, LINES * 20).json()["version"]
    recipe = make_recipe(team, rules=[RULES[0]])
    return {
        "dataset_version_id": version["id"],
        "recipe_version_id": recipe.pk,
        "model": "models/tiny",
        "name": "from-a-script",
        "settings": {"optim.num_steps": 7, "data.num_eval_rows": 0},
        "confirm": True,
    }


def test_a_run_is_launched(program, team):
    made = program.post("/launches", launchable(program, team))

    assert made.status_code == 201, made.text
    run = Run.objects.get(pk=made.json()["id"])
    assert (run.name, run.state, run.num_steps) == ("from-a-script", "queued", 7)
    entry = AuditEntry.objects.get(verb="run.launched")
    assert (entry.actor_id, entry.object_id) == (run.owner_id, run.pk)


def test_a_setting_that_cannot_be_is_named(program, team):
    requested = launchable(program, team)

    wrong = program.post("/launches", requested | {"settings": {"optim.num_steps": -1}})
    unknown = program.post("/launches", requested | {"settings": {"optim.speed": 1}})

    assert [wrong.status_code, unknown.status_code] == [422, 422]
    fields = [error["field"] for error in wrong.json()["errors"]]
    assert "body.settings.optim.num_steps" in fields
    assert unknown.json()["errors"][0]["field"] == "body.settings.optim.speed"
    assert not Run.objects.exists()


def test_a_launch_is_sent_twice_and_queued_once(program, team):
    requested = launchable(program, team)

    found = [
        program.post("/launches", requested, Idempotency_Key="k") for _ in range(2)
    ]

    assert found[0].json()["id"] == found[1].json()["id"]
    assert Run.objects.count() == 1


def test_toml_is_launched_as_the_form_takes_it(program, team):
    requested = launchable(program, team) | {"toml": "[optim]\nnum_steps = 9\n"}
    requested["settings"] = {"data.num_eval_rows": 0}

    made = program.post("/launches", requested)
    wrong = program.post(
        "/launches", requested | {"toml": "[optim]\nnum_steps = 'x'\n"}
    )

    assert made.json()["num_steps"] == 9, made.text
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["field"] == "body.toml"


def test_a_stop_is_requested_once(program, team):
    run = make_run(team, state="queued", finished_at=None, started_at=None)

    first = program.post(f"/runs/{run.pk}/stop").json()
    second = program.post(f"/runs/{run.pk}/stop").json()

    run.refresh_from_db()
    assert run.state == "stopped"
    assert first["done"] is True
    assert second["done"] is False


def test_a_run_is_described(program, team):
    run = make_run(team, notes="old")

    found = program.patch(f"/runs/{run.pk}", {"name": "new", "tags": ["a", "b"]})

    assert found.status_code == 200, found.text
    run.refresh_from_db()
    assert (run.name, run.tags, run.notes) == ("new", ["a", "b"], "old")


def test_a_run_is_archived_locked_and_put_into_the_trash(program, team):
    address = f"/runs/{make_run(team).pk}"

    both = program.patch(address, {"is_archived": True, "is_locked": True}).json()
    again = program.patch(address, {"is_locked": True})
    held = [
        program.patch(address, body)
        for body in ({"is_trashed": True}, {"name": "new"}, {"is_archived": False})
    ]
    freed = program.patch(
        address, {"is_locked": False, "is_archived": False, "name": "b"}
    ).json()
    gone = program.patch(address, {"is_trashed": True}).json()
    back = program.patch(address, {"is_trashed": False, "tags": ["kept"]}).json()

    flags = ("is_archived", "is_locked", "is_trashed")
    values = [tuple(each[flag] for flag in flags) for each in (both, freed, gone, back)]
    assert values == [
        (True, True, False),
        (False, False, False),
        (False, False, True),
        (False, False, False),
    ]
    assert again.status_code == 200
    assert [each.status_code for each in held] == [409, 422, 409]
    assert held[0].json()["errors"][0]["field"] == "body.is_trashed"
    assert (back["name"], back["tags"]) == ("b", ["kept"])


def test_a_run_in_the_trash_is_deleted_for_good(program, team):
    run = make_run(team)

    kept = program.delete(f"/runs/{run.pk}")
    program.patch(f"/runs/{run.pk}", {"is_trashed": True})
    gone = program.delete(f"/runs/{run.pk}")

    assert (kept.status_code, gone.json()["done"]) == (409, True)
    assert not Run.objects.exists()
