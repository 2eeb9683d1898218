"""Of one run: its logs, machine, tokens, kin, changes; and recipes tried on it."""

from typing import Any

import pytest

from dashboard.analysis.rescoring.models import Rescoring
from dashboard.completions.models import GroupTokens
from dashboard.completions.tokens import pack_tokens
from dashboard.runs.models import Run
from dashboard.runs.queries import AttemptDirectory, run_directory
from dashboard.supervision.lease import claim_run
from dashboard.transfers.models import RunImport
from tests.dashboard.analysis.probes.factories import make_version
from tests.dashboard.analysis.rescoring.factories import start
from tests.dashboard.api.asking import BASE, Program
from tests.dashboard.completions.factories import (
    RULES,
    make_checkpoint,
    make_group,
    make_run,
)
from tests.dashboard.runs.stories import queue_run
from tests.dashboard.supervision.logs import measured
from tests.dashboard.supervision.machines import make_samples
from tests.dashboard.transfers.tools import trl_parquet

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data_folder")]


@pytest.fixture
def life(team) -> AttemptDirectory:
    run = queue_run(team)
    claim_run(run.pk, "training@gpu-1")
    files = run_directory(run.pk).attempt(1)
    files.path.mkdir(parents=True)
    files.trainer_log.write_text("".join(f"step {n}\n" for n in range(1, 801)))
    return files


def test_a_log_is_read_from_its_end_and_back(program, team, life):
    run = team.runs.get()
    end = program.read(f"/runs/{run.pk}/log?source=trainer")
    before = program.read(f"/runs/{run.pk}/log?source=trainer&before={end['first']}")

    texts = [each["text"] for part in (before, end) for each in part["lines"]]
    assert texts == [f"step {n}" for n in range(1, 801)]
    assert (end["number"], end["is_end"], before["number"]) == (301, True, 1)
    assert program.get(f"/runs/{run.pk}/log?attempt=7").status_code == 404
    assert program.get(f"/runs/{run.pk}/log?source=rank-1").status_code == 404
    for source in ("rank-x", "both"):
        assert program.get(f"/runs/{run.pk}/log?source={source}").status_code == 422


def test_a_log_is_taken_as_a_file(program, team, life):
    answer = program.get(f"/runs/{team.runs.get().pk}/log/file")

    file = b"".join(answer.streaming_content)
    assert file == life.trainer_log.read_bytes()


def test_a_machines_use_is_read(program, run):
    make_samples(run, 4, gpus=1)

    found = program.read(f"/runs/{run.pk}/system?x=step&first=1&last=2")

    assert found["step"] == [1, 2]
    assert found["values"]["cpu"] == found["values"]["gpu_use/0"] == [1.0, 2.0]


def test_tokens_are_read_where_they_are_kept(program, run):
    group = make_group(run)
    address = f"/runs/{run.pk}/groups/1/0/tokens"
    assert program.get(address).status_code == 404

    GroupTokens.objects.create(
        group=group, packed=pack_tokens([measured(" so", logprob=[-0.5])])
    )

    (found,) = program.read(address)["completions"]
    assert found["logprob"] == [-0.5]


def test_settings_are_taken_as_the_engine_reads_them(program, run):
    toml, tree = (
        b"".join(program.get(f"/runs/{run.pk}/config.{s}").streaming_content)
        for s in ("toml", "json")
    )

    assert b"[rollout]" in toml
    assert b'"group_size": 4' in tree
    assert program.get(f"/runs/{run.pk}/config.yaml").status_code == 422


def test_a_run_is_extended_and_its_intervals_changed(program, run):
    last = f"step-{run.num_steps:06d}-attempt-1"
    make_checkpoint(run, run.num_steps, name=last)
    address = f"/runs/{run.pk}"

    short = program.post(f"{address}/extend", {"num_steps": 100})
    longer = program.post(f"{address}/extend", {"num_steps": 300})
    requested = {"settings": {"checkpoint.every_steps": 7}}
    changed = program.post(f"{address}/changes", requested)
    wrong = program.post(f"{address}/changes", {"settings": {"seed": 7}})

    assert short.status_code == 409
    assert longer.json()["num_steps"] == 300
    assert changed.json()["settings"]["checkpoint.every_steps"] == 7
    assert [each["after"] for each in program.read(f"{address}/changes")["items"]] == [
        each["after"] for each in changed.json()["items"]
    ]
    assert wrong.json()["errors"][0]["field"] == "body.settings.seed"
    run.refresh_from_db()
    assert (run.state, run.num_steps) == ("queued", 300)


def test_a_recipe_is_checked_against_rows(program, team):
    version = make_version(team)
    spec = {"rules": [{"name": "tags", "kind": "format_tags", "params": {}}]}

    found = program.post(
        "/recipes/check", {"spec": spec, "dataset_version_id": version.pk}
    ).json()
    wrong = program.post("/recipes/check", {"spec": {"rules": [{"kind": "odd"}]}})

    assert found["highest"] == 1.0
    assert {each["kind"] for each in found["findings"]} == {"trivial"}
    assert wrong.json()["errors"][0]["field"].startswith("body.spec.rules.0")


def put(program: Program, address: str, part: bytes) -> Any:
    return program.client.put(
        BASE + address,
        part,
        content_type="application/octet-stream",
        headers=program.headers,
    )


def test_files_of_another_tool_become_a_run(program, team):
    begun = program.post("/run-imports").json()
    address = f"/run-imports/{begun['id']}"
    early = program.post(f"{address}/read")
    for step in (1, 2):
        data = trl_parquet(step)
        query = f"filename=completions_{step:05d}.parquet&num_bytes={len(data)}"
        sent = put(program, f"{address}/files?{query}&offset=0", data)
        assert sent.status_code == 200, sent.text

    read = program.post(f"{address}/read").json()
    wrong = program.post(f"{address}/make", {"name": "x", "weights": {"odd": 1}})
    made = program.post(
        f"{address}/make", {"name": "theirs", "weights": {"format_reward": None}}
    ).json()

    assert early.status_code == 409
    assert read["state"] == "done", read
    assert read["findings"]["tools"] == ["TRL"]
    assert wrong.json()["errors"][0]["field"] == "body.weights"
    run = Run.objects.get(pk=made["run_id"])
    assert (run.name, run.last_step) == ("theirs", 2)
    assert program.post(f"{address}/make", {"name": "more"}).status_code == 409


@pytest.mark.usefixtures("parquet_in_process")
def test_a_large_file_is_uploaded_in_parts_and_continued(program, team) -> None:
    address = f"/run-imports/{program.post('/run-imports').json()['id']}"
    data = trl_parquet(1)
    query = f"filename=1.parquet&num_bytes={len(data)}&fingerprint=f"
    parts = f"{address}/files?{query}&offset="

    first = put(program, f"{parts}0", data[:100])
    twice = put(program, f"{parts}0", data[:100])
    (again,) = program.get(address).json()["unfinished"]
    last = put(program, f"{parts}{again['num_received']}", data[100:])

    assert first.json()["num_received"] == again["num_received"] == 100
    assert twice.status_code == 409
    assert twice.json()["errors"][0]["field"] == "query.offset"
    assert last.json()["is_whole"] is True
    assert program.post(f"{address}/read").json()["findings"]["tools"] == ["TRL"]
    assert program.delete(address).json()["done"] is True
    assert not RunImport.objects.exists()


def test_a_rescoring_is_taken_and_deleted(program, run):
    make_group(run)
    rescoring = start(run)
    address = f"/rescorings/{rescoring.pk}"

    going_on = program.delete(address)
    program.post(f"{address}/stop")
    file = program.get(f"{address}/completions.csv")
    deleted = program.delete(address)

    assert going_on.status_code == 409
    assert b"new_reward" in b"".join(file.streaming_content)
    assert deleted.json()["done"] is True
    assert not Rescoring.objects.exists()


def test_a_rescoring_is_started_with_a_draft(program, team):
    run = make_run(team, dataset_version=make_version(team))
    make_group(run, step=2, prompt_index=1, rewards=(0.0, 0.0), texts=["2", "3"])
    rules = [{"name": "right", "kind": "numeric_answer", "weight": 1.0, "params": {}}]
    body = {"run_id": run.pk, "spec": {"rules": rules}}

    begun = program.post("/rescorings", body).json()
    both = program.post(
        "/rescorings", body | {"recipe_version_id": run.recipe_version_id}
    )

    found = program.read(f"/rescorings/{begun['id']}")
    assert [rule["name"] for rule in found["spec"]["rules"]] == ["right"]
    assert found["failures"] == []
    assert both.json()["errors"][0]["field"] == "body.spec"


def test_a_recipe_names_its_rules_as_the_run_does(program, run):
    found = program.post("/recipes/check", {"spec": {"rules": RULES}}).json()

    assert found["lowest"] == 0.0
    assert found["highest"] == pytest.approx(1.2)
    assert found["findings"] == []
