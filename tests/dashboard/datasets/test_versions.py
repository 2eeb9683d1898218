"""Versions are immutable."""

import hashlib
import json
from typing import Any

import pytest
from django.db import IntegrityError, connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboard.accounts.models import AuditEntry, Team
from dashboard.datasets.models import Dataset, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.row_storage import write_rows
from dashboard.datasets.services import create_dataset_version
from dashboard.project.errors import UserError
from tests.dashboard.datasets.parsing.test_parsing_properties import JSON, NAMES, TEXT
from trainer.data import read_rows

ROWS = [
    Row(prompt="2+2?", answer="4", columns={"level": 1, "numbers": [2, 2]}),
    Row(prompt=[{"role": "user", "content": "Say é"}], columns={"x": None}),
    Row(prompt="\u202e RTL \u2028", answer="", columns={"big": 1e300, "z": -0.0}),
]
CHAT = st.lists(
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": TEXT},
        optional={"tool_calls": st.lists(JSON, min_size=1), "name": TEXT},
    ),
    min_size=1,
)
CALL = {"id": "c", "function": {"name": "find", "arguments": {"to": "Bern", "by": 1}}}
TOOL_CHAT = [
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "7:02"},
]


def create(team: Team, rows: list[Row], **changes: Any) -> DatasetVersion:
    given = {"name": "Sums", "mapping": {}, "source": {}, "user": None, **changes}
    return create_dataset_version(team=team, rows=rows, **given)


def test_rows_are_stored_in_order_with_their_columns(team):
    version = create(team, ROWS)

    assert version.num_rows == 3
    stored = [row.as_row() for row in version.rows.order_by("position")]
    assert stored[:2] == ROWS[:2]
    # 1e300 is stored as the whole number it is.
    assert stored[2].canonical() == ROWS[2].canonical()


def test_several_answers_and_calls_of_tools_are_stored_as_they_are(team):
    rows = [
        Row(prompt=TOOL_CHAT, answer=['say "4"', "\\frac{8}{2}\n", "é"]),
        Row(prompt="2+2?", answer='["4", "four"]'),
        Row(prompt="2+2?", answer=["4", "four"]),
        Row(prompt="2+2?", answer=["4"]),
        Row(prompt="2+2?", answer=[]),
    ]
    version = create(team, rows)

    stored = list(version.rows.order_by("position"))

    assert [row.as_row() for row in stored] == rows
    assert [row.answer_is_list for row in stored] == [True, False, True, False, False]
    assert [row.answer for row in stored[3:]] == ["4", None]
    assert [row.answers for row in stored[1:]] == [
        ['["4", "four"]'],
        ["4", "four"],
        ["4"],
        [],
    ]
    assert [row.question for row in stored[:2]] == ["When?", "2+2?"]
    # In the order of the file: a chat template may write them so.
    arguments = stored[0].prompt_value[1]["tool_calls"][0]["function"]["arguments"]
    assert list(arguments) == ["to", "by"]


def test_the_trainer_reads_the_rows_as_they_were_stored(team, tmp_path):
    version = create(
        team, [Row(prompt=TOOL_CHAT, answer=["4", "é\u2028"]), *ROWS[:2], ROWS[2]]
    )
    path = tmp_path / "rows.jsonl"

    write_rows(version, path)

    read = read_rows(path)
    stored = [row.as_row() for row in version.rows.order_by("position")]
    assert [row.answer for row in read] == [row.answer for row in stored]
    assert read[0].prompt == tuple(TOOL_CHAT)
    assert [row.columns for row in read] == [row.columns for row in stored]


def test_a_row_of_one_answer_has_the_line_that_it_always_had():
    chat = [{"role": "user", "content": "Say é"}]

    assert [row.canonical() for row in (*ROWS[:1], Row(prompt=chat, answer="é"))] == [
        '{"answer":"4","columns":{"level":1,"numbers":[2,2]},"prompt":"2+2?"}',
        '{"answer":"é","columns":{},"prompt":[{"content":"Say é","role":"user"}]}',
    ]


def test_rows_of_the_previous_release_have_one_answer(team):
    """It inserts rows without the column that it does not know."""
    version = create(team, ROWS[:1])
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO datasets_datasetrow (version_id, position, prompt, is_chat,"
            " answer, columns) VALUES (%s, 9, 'a', false, '[1]', '{}')",
            [version.pk],
        )

    assert version.rows.get(position=9).answer_value == "[1]"


def test_the_hash_is_that_of_the_written_file(team, tmp_path):
    version = create(team, ROWS)
    path = tmp_path / "rows.jsonl"

    write_rows(version, path)

    assert hashlib.sha256(path.read_bytes()).hexdigest() == version.content_sha256
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    assert lines[0] == {
        "prompt": "2+2?",
        "answer": "4",
        "columns": {"level": 1, "numbers": [2, 2]},
    }
    assert lines[1]["prompt"] == [{"role": "user", "content": "Say é"}]
    assert list(tmp_path.iterdir()) == [path]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.builds(
            Row,
            prompt=TEXT | CHAT,
            answer=st.none() | TEXT | st.lists(TEXT),
            columns=st.dictionaries(NAMES, JSON, max_size=3),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_rows_are_written_with_their_hash(team, tmp_path, rows):
    Dataset.objects.all().delete()
    version = create(team, rows)

    # It raises when the stored rows hash to anything else.
    write_rows(version, tmp_path / "rows.jsonl")


def test_a_version_changed_in_the_database_is_not_written(team, tmp_path):
    version = create(team, ROWS)
    version.rows.filter(position=0).update(answer="5")

    with pytest.raises(UserError) as refused:
        write_rows(version, tmp_path / "rows.jsonl")

    assert refused.value.code == "datasets.rows_missing"
    assert list(tmp_path.iterdir()) == []


def test_other_content_is_the_next_version(team):
    first = create(team, ROWS)

    second = create(team, ROWS[:2], dataset=first.dataset)

    assert (first.number, second.number) == (1, 2)
    assert first.rows.count() == 3
    assert second.rows.count() == 2


def test_the_same_content_is_the_same_version(team):
    first = create(team, ROWS)

    again = create(team, list(ROWS), dataset=first.dataset)

    assert again == first
    assert DatasetVersion.objects.count() == 1
    assert AuditEntry.objects.filter(verb="dataset.version_created").count() == 1


def test_content_of_an_older_version_is_a_new_one(team):
    first = create(team, ROWS)
    create(team, ROWS[:1], dataset=first.dataset)

    assert create(team, ROWS, dataset=first.dataset).number == 3


def test_a_name_is_taken_once_in_a_team(team):
    create(team, ROWS)

    with pytest.raises(UserError) as refused:
        create(team, ROWS)

    assert refused.value.code == "datasets.name_taken"
    other = Team.objects.create(slug="beta", name="Beta")
    assert create(other, ROWS).number == 1


def test_no_rows_make_no_dataset(team):
    with pytest.raises(UserError) as refused:
        create(team, [])

    assert refused.value.code == "datasets.no_rows"
    assert Dataset.objects.count() == 0


def test_rows_that_fail_midway_leave_nothing(team):
    def rows():
        yield from ROWS
        raise RuntimeError("disk failure")

    with pytest.raises(RuntimeError):
        create(team, rows())

    assert Dataset.objects.count() == 0


def test_storing_reports_its_progress(team, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.row_storage.COPY_BYTES", 1)
    reports: list[tuple[int, int]] = []

    create(team, ROWS, on_stored=lambda done, total: reports.append((done, total)))

    assert reports == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_an_error_between_batches_rolls_back(team, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.row_storage.COPY_BYTES", 1)

    def cancel(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create(team, ROWS, on_stored=cancel)

    assert Dataset.objects.count() == 0


def test_no_rows_are_read_within_a_transaction(team):
    depths = []

    def rows():
        depths.append(len(connection.savepoint_ids))
        yield from ROWS

    before = len(connection.savepoint_ids)
    create(team, rows())

    assert depths == [before]


def test_a_new_version_is_in_the_audit_log(team, alice):
    version = create(team, ROWS, user=alice)

    entry = AuditEntry.objects.get(verb="dataset.version_created")
    assert entry.actor == alice
    assert entry.object_id == version.pk
    assert entry.detail["num_rows"] == 3


def test_the_database_refuses_a_number_twice(team):
    version = create(team, ROWS)

    with pytest.raises(IntegrityError):
        version.dataset.versions.create(number=1, num_rows=1, mapping={})


GUESS = {"kind": "guess", "max_tokens": 64}


def test_an_environment_makes_a_version_of_the_same_rows(team):
    first = create(team, ROWS)
    dataset = first.dataset

    second = create(team, ROWS, dataset=dataset, environment=GUESS)
    repeated = create(team, ROWS, dataset=dataset, environment=GUESS)
    uploaded = create(team, ROWS[:2], dataset=dataset)
    without = create(team, ROWS[:2], dataset=dataset, environment={})

    assert first.environment is without.environment is None
    assert second.content_sha256 == first.content_sha256
    assert repeated == second
    assert second.environment == uploaded.environment == GUESS
    assert without.number == 4
