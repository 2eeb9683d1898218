"""A group keeps the list of its row's answers, from the trainer's event to any file."""

import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import connection
from django.urls import reverse

from dashboard.completions.models import Group
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.runs.models import Run
from dashboard.supervision.external_runs import open_run
from dashboard.transfers.import_formats import Sample, read_sample
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.supervision.logs import LogBuilder, group
from tests.dashboard.supervision.sending import send
from tests.dashboard.supervision.test_opening_a_run import OPENING
from trainer.events import GroupScored

pytestmark = pytest.mark.django_db
# As they come and as they are stored: one in a list is that text, and none is none.
ANSWERS: list[tuple[Any, Any]] = [
    (["4", 'say "four"\0'], ["4", 'say "four"␀']),
    (["\\frac{8}{2}"], "\\frac{8}{2}"),
    ([], None),
    ('["4", "four"]', '["4", "four"]'),
]


@pytest.fixture(scope="module")
def run(shared_team, shared_alice) -> Run:
    run = open_run(OPENING, team=shared_team, user=shared_alice)[0]
    log = LogBuilder()
    for index, (answer, _) in enumerate(ANSWERS):
        log.add(GroupScored, step=1, **group(index) | {"answer": answer})
    send(run, log.stepped(2, num_groups=0).finished(2))
    run.refresh_from_db()
    return run


def test_answers_are_stored_as_they_were_scored_by(run):
    stored = Group.objects.order_by("prompt_index")

    assert [each.answer_value for each in stored] == [kept for _, kept in ANSWERS]
    assert [each.answer_is_list for each in stored] == [True, False, False, False]


def test_the_runs_prompts_become_rows_with_the_same_answers(run):
    assert run.dataset_version is not None
    rows = run.dataset_version.rows.order_by("position")

    assert [row.answer_value for row in rows] == [kept for _, kept in ANSWERS]


def test_pages_show_each_of_the_answers(run, alice_client):
    def text(name: str, *args: object) -> str:
        return alice_client.read(reverse(name, args=["alpha", *args]))

    four = '<bdi class="mono">4</bdi>, <bdi class="mono">say &quot;four&quot;␀</bdi>'
    for page in (text("group", run.pk, 1, 0), text("run_prompt", run.pk, 0)):
        assert four in page
    assert "4 or say &quot;four&quot;␀" in text("run_prompts", run.pk)
    assert "any of" not in text("group", run.pk, 1, 3)


def test_programs_get_a_list(run, alice):
    program = Program(make_token(alice, "read"))

    listed = program.get(f"/runs/{run.pk}/groups").json()["items"]
    one = program.get(f"/runs/{run.pk}/groups/1/0").json()
    rows = program.get(f"/dataset-versions/{run.dataset_version_id}/rows").json()

    found = {each["prompt_index"]: each["answer"] for each in listed}
    assert [found[index] for index in range(4)] == [kept for _, kept in ANSWERS]
    assert one["answer"] == ANSWERS[0][1]
    assert [row["answer"] for row in rows["items"]] == [kept for _, kept in ANSWERS]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_exported_completions_are_read_again(run, alice_client, suffix):
    address = reverse(
        "run_export_file", args=["alpha", run.pk, f"completions.{suffix}"]
    )
    content = alice_client.get(address).getvalue()  # type: ignore[attr-defined]  # a stream has it
    if suffix == "jsonl":
        rows = [json.loads(line) for line in content.splitlines()]
    else:
        rows = pq.read_table(io.BytesIO(content)).to_pylist()

    samples = [read_sample("Cohort", Record(1, row)) for row in rows]

    indexes = [row["prompt_index"] for row in rows]
    found = dict(zip(indexes, (each.answer for each in samples), strict=True))
    assert [found[index] for index in range(4)] == [kept for _, kept in ANSWERS]


def test_a_list_of_another_tool_is_several_answers():
    row = {"input": "?", "output": "4", "score": 1.0, "step": 1}

    found = [
        read_sample("verl", Record(1, row | {"gts": answers})).answer
        for answers in (["4", "four"], ["4"], [4, 5.5], "4", None)
    ]

    assert found == [["4", "four"], "4", ["4", "5.5"], "4", None]


def test_calls_of_tools_are_kept_in_an_imported_prompt():
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    empty = {"name": None, "tool_calls": None}  # as Parquet has them
    chat = [
        {"role": "user", "content": "1+2?", **empty},
        {"role": "assistant", "content": None, **empty, "tool_calls": [call]},
    ]
    row = {"step": 1, "prompt": chat, "completion": chat[1:], "accuracy_reward": 1.0}

    sample = read_sample("TRL", Record(1, row))
    broken = read_sample("TRL", Record(1, row | {"prompt": [chat[0] | {"name": "\0"}]}))

    assert isinstance(sample, Sample)
    assert sample.prompt == [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    assert sample.completion == 'add({"a": 1})'
    assert isinstance(broken, Refusal)
    assert broken.column == "prompt"


def test_groups_of_the_previous_release_have_one_answer(run):
    """It inserts groups without the column that it does not know."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO samples_group (run_id, step, prompt_index, epoch, seq, prompt,"
            " answer, signal, rule_names) VALUES (%s, 9, 0, 1, 99, 'a', '[1]', 'mixed',"
            " '{}')",
            [run.pk],
        )

    assert Group.objects.get(step=9).answer_value == "[1]"
