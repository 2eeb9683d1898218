"""A run as files: every point and completion, as other programs read them."""

import csv
import io
import json
import zipfile
from datetime import timedelta
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.test import Client
from django.urls import reverse

from dashboard.completions.models import Comment, Tag, Thumb
from dashboard.runs.models import Evaluation, Run, Step
from dashboard.transfers import export_runs
from dashboard.transfers.export_runs import send_file
from dashboard.transfers.export_tables import Span
from tests.dashboard.completions.factories import (
    START,
    make_evaluation,
    make_group,
    make_run,
    make_steps,
)
from tests.dashboard.transfers.event_files import read_event_file


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    """Five steps, a sixth superseded; evaluated before the first and at the third."""
    run = make_run(shared_team, name="calm otter=1")
    rewards = [0.1, -0.25, None, 0.5, 1e-7]
    make_steps(run, {"reward/mean": rewards, "=kl/mean": [0.0, 1.0, 2.0, 3.0, 4.0]})
    Step.objects.create(
        run=run, step=6, attempt=1, seq=6, time=START, values=[9.0], superseded_by=2
    )
    for step, score in ((0, 0.25), (3, 0.75)):
        make_evaluation(
            run,
            step,
            {"eval/held/pass@4": score, "eval/held/mean": None},
            name="held",
            seq=100 + step,
            time=START + timedelta(seconds=step),
        )
    return run


def take(client: Client, run: Run, file: str, query: str = "") -> bytes:
    answer = client.get(
        reverse("run_export_file", args=["alpha", run.pk, file]) + query
    )
    assert answer.status_code == 200, answer.content
    return answer.getvalue()  # type: ignore[attr-defined]  # a stream has it


def take_rows(client: Client, run: Run, name: str, query: str = "") -> list[Any]:
    lines = take(client, run, f"{name}.jsonl", query).decode().splitlines()
    return [json.loads(line) for line in lines]


def take_csv(client: Client, run: Run, name: str) -> list[dict[str, str]]:
    text = take(client, run, f"{name}.csv").decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text)))


def test_only_a_browsers_csv_begins_with_a_byte_order_mark(alice_client, run):
    mark = "\ufeff".encode()
    for file in ("metrics.csv", "completions.csv"):
        shown = take(alice_client, run, file)
        sent = send_file(run, Span(), file).getvalue()

        assert shown == mark + sent
        assert sent.startswith(b"step,")
    assert not take(alice_client, run, "metrics.jsonl").startswith(mark)


def test_all_points_but_superseded_steps_are_exported(alice_client, run, monkeypatch):
    monkeypatch.setattr(export_runs, "STEPS_AT_ONCE", 2)

    rows = take_rows(alice_client, run, "metrics")

    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["reward/mean"] for row in rows] == [None, 0.1, -0.25, None, 0.5, 1e-7]
    scores = [row["eval/held/pass@4"] for row in rows]
    assert scores == [0.25, None, None, 0.75, None, None]
    assert rows[1]["time"] == "2026-03-01T12:00:10+00:00"


def test_parquet_holds_what_the_json_lines_hold(alice_client, run):
    table = pq.read_table(io.BytesIO(take(alice_client, run, "metrics.parquet")))

    rows = table.to_pylist()
    for row in rows:
        row["time"] = row["time"].isoformat()
    assert rows == take_rows(alice_client, run, "metrics")
    types = {str(t).partition("[")[0] for t in table.schema.types}
    assert types == {"int64", "timestamp", "double"}
    assert table.schema.field("time").type.tz == "UTC"


def test_csv_has_numbers_and_no_formulas(alice_client, run):
    rows = take_csv(alice_client, run, "metrics")

    assert rows[2]["reward/mean"] == "-0.25"
    assert "'=kl/mean" in rows[0]
    assert rows[0]["'=kl/mean"] == ""


def test_a_range_of_steps_is_in_the_filename(alice_client, run):
    at = reverse("run_export_file", args=["alpha", run.pk, "metrics.jsonl"])

    answer = alice_client.get(f"{at}?first_step=2&last_step=3")

    name = f'filename="calm-otter-1-{run.pk}-metrics-steps-2-3.jsonl"'
    assert name in answer["Content-Disposition"]
    lines = answer.getvalue().splitlines()  # type: ignore[attr-defined]  # a stream has it
    assert [json.loads(line)["step"] for line in lines] == [2, 3]
    backwards = alice_client.get(at, {"first_step": 3, "last_step": 2})
    assert backwards.status_code == 422


def test_completions_are_ordered_and_have_annotations(
    alice_client, run, alice, monkeypatch
):
    monkeypatch.setattr(export_runs, "GROUPS_AT_ONCE", 2)
    for step, prompt in ((2, 1), (1, 3), (1, 0), (2, 0), (3, 5)):
        make_group(run, step=step, prompt_index=prompt, rewards=(1.2, None))
    make_group(run, step=4, rewards=(1.2,), superseded_by=2)
    group = run.groups.get(step=1, prompt_index=3)
    Thumb.objects.create(group=group, position=1, user=alice, is_up=False)
    Tag.objects.create(group=group, position=1, user=alice, name="odd")
    Comment.objects.create(group=group, position=1, user=alice, text="why?")

    rows = take_rows(alice_client, run, "completions")

    at = [(row["step"], row["prompt_index"], row["position"]) for row in rows]
    groups = [(1, 0), (1, 3), (2, 0), (2, 1), (3, 5)]
    assert at == [(*place, position) for place in groups for position in (0, 1)]
    assert rows[0]["rules"] == {"answer": 1.0, "format": pytest.approx(1.0)}
    assert rows[1]["reward"] is None
    assert rows[1]["rules"] == {"answer": None, "format": None}
    marked = rows[3]
    assert (marked["good"], marked["bad"]) == (0, 1)
    assert marked["tags"] == [{"name": "odd", "by": alice.username}]
    assert marked["comments"][0]["text"] == "why?"
    assert not rows[2]["tags"]


def test_completions_are_the_same_in_parquet_and_csv(alice_client, run):
    make_group(run, texts=["=SUM(A1)", "ein\nzwei, drei"], rewards=(1.2, -0.2))

    table = pq.read_table(io.BytesIO(take(alice_client, run, "completions.parquet")))
    rows = take_csv(alice_client, run, "completions")

    exported = take_rows(alice_client, run, "completions")
    assert table.to_pylist() == exported
    assert rows[0]["completion"] == "'=SUM(A1)"
    assert rows[1]["completion"] == "ein\nzwei, drei"
    assert float(rows[1]["reward"]) == -0.2
    assert float(rows[0]["rules/answer"]) == 1.0
    assert rows[0]["is_trained"] == "true"


def test_hugging_face_datasets_reads_the_parquet_files(alice_client, run, tmp_path):
    from datasets import load_dataset

    make_group(run, rewards=(1.2, -0.2))
    make_group(run, step=2, rule_names=["other"], rewards=(1.0,))
    make_group(run, step=3, rule_names=[], rewards=(1.0,))
    read = {}
    for name, query in (
        ("completions", ""),
        ("bare", "?first_step=3"),
        ("metrics", ""),
    ):
        file = tmp_path / f"{name}.parquet"
        what = "metrics" if name == "metrics" else "completions"
        file.write_bytes(take(alice_client, run, f"{what}.parquet", query))
        read[name] = load_dataset(
            "parquet", data_files=str(file), split="train", cache_dir=tmp_path / "cache"
        )

    completions = read["completions"]
    assert completions["rules"][0] == pytest.approx(
        {"answer": 1.0, "format": 1.0, "other": None}
    )
    assert completions["reward"] == [1.2, -0.2, 1.0, 1.0]
    assert read["bare"]["rules"] == [None]
    assert read["metrics"]["reward/mean"][1] == 0.1


def test_huge_numbers_are_floats_in_every_file(alice_client, run):
    """Of 1e16, which jsonb holds exactly, it gives an integer back."""
    huge = [1e16, 1e39, 1.7e308]
    Evaluation.objects.filter(run=run).delete()
    for step, value in enumerate(huge, start=1):
        make_evaluation(run, step, {"eval/held/mean": value}, name="held")

    table = pq.read_table(io.BytesIO(take(alice_client, run, "metrics.parquet")))
    archive = zipfile.ZipFile(io.BytesIO(take(alice_client, run, "tensorboard.zip")))

    assert table.column("eval/held/mean").to_pylist()[:3] == huge
    rows = take_rows(alice_client, run, "metrics")
    assert [row["eval/held/mean"] for row in rows[:3]] == huge
    cells = [row["eval/held/mean"] for row in take_csv(alice_client, run, "metrics")]
    assert cells[:3] == ["1e+16", "1e+39", "1.7e+308"]
    _, *events = read_event_file(archive.read(archive.namelist()[0]))
    values = [event.values["eval/held/mean"] for event in events[:3]]
    assert values == [pytest.approx(1e16), float("inf"), float("inf")]


def test_tensorboard_finds_each_value_at_its_step_and_time(alice_client, run):
    archive = zipfile.ZipFile(io.BytesIO(take(alice_client, run, "tensorboard.zip")))

    (name,) = archive.namelist()
    assert name.startswith(f"calm-otter-1-{run.pk}/events.out.tfevents.")
    version, *events = read_event_file(archive.read(name))
    assert version.version == "brain.Event:2"
    assert [event.step for event in events] == [0, 1, 2, 3, 4, 5]
    assert events[2].values["reward/mean"] == pytest.approx(-0.25)
    assert "reward/mean" not in events[3].values
    assert events[3].values["eval/held/pass@4"] == pytest.approx(0.75)
    assert events[1].time == (START + timedelta(seconds=10)).timestamp()


def test_the_page_shows_the_number_of_rows(alice_client, run):
    make_group(run, rewards=(1.2, 0.2, 0.0))
    make_group(run, step=3, rewards=(1.2,))

    def offer(**query: object) -> Any:
        return alice_client.get(f"/alpha/runs/{run.pk}/export/", query).context["offer"]

    metrics, completions = offer(last_step=2), offer(what="completions", last_step=2)
    assert (metrics["num_rows"], metrics["num_all"]) == (3, 6)
    assert (completions["num_rows"], completions["num_all"]) == (3, 4)
    size = len(take(alice_client, run, "metrics.jsonl", "?last_step=2"))
    assert metrics["num_bytes"] == size


@pytest.mark.parametrize(
    ("query", "file"),
    [
        ("what=metrics&format=csv&last_step=2", "export/metrics.csv?last_step=2"),
        ("what=metrics&format=tensorboard", "export/tensorboard.zip"),
        ("what=completions&format=toml", "export/completions.csv"),
        ("what=settings&format=json", "config.json"),
        ("what=preferences", "export/metrics.csv"),  # it has no annotations
        ("what=metrics&first_step=3&last_step=2", None),
    ],
)
def test_download_leads_to_the_file(alice_client, run, query, file):
    response = alice_client.get(f"/alpha/runs/{run.pk}/export/?{query}&download=1")

    if file is None:
        assert response.context["form"].errors
    else:
        assert response["Location"] == f"/alpha/runs/{run.pk}/{file}"
