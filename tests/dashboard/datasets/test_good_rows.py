"""Rows with errors: the user fixes the file or skips exactly those."""

import json
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import AuditEntry
from dashboard.datasets.imports import begin_work, import_upload, start_job
from dashboard.datasets.mapping import Mapping
from dashboard.datasets.models import Dataset, DatasetRow, DatasetVersion, Upload
from dashboard.datasets.parsing.records import ImportRefused, Refusal
from tests.dashboard.datasets.test_upload import MAPPING, RECORDS, jsonl, upload

BAD = {"question": "", "solution": "1", "level": 0}
MESSY = jsonl([*RECORDS, BAD, *RECORDS, {"question": "a"}, *RECORDS])


def post(client: Client, url: str, **changes: Any) -> Any:
    return client.post(url, {**MAPPING, **changes})


def test_the_page_offers_to_skip_or_fix_rows(alice_client):
    answer = post(alice_client, upload(alice_client, MESSY))

    assert answer.status_code == 422
    refusals = answer.context["refusals"]
    assert (refusals.count, refusals.num_good) == (2, 6)
    assert 'name="retry"' in answer.text
    assert 'name="leave_out" value="2"' in answer.text


def test_a_version_of_valid_rows_lists_the_skipped_ones(alice_client, team):
    url = upload(alice_client, MESSY)
    post(alice_client, url)

    answer = alice_client.post(url, {**MAPPING, "leave_out": "2"}, follow=True)

    version = DatasetVersion.objects.get()
    assert (version.num_rows, version.num_left_out) == (6, 2)
    firsts = [group["first"][0] for group in version.left_out]
    assert [(it["line"], it["column"]) for it in firsts] == [
        (3, "question"),
        (6, "solution"),
    ]
    assert DatasetRow.objects.count() == 6
    assert "2 skipped rows" in answer.text
    assert firsts[0]["problem"] in answer.text
    entry = AuditEntry.objects.get(verb="dataset.version_created")
    assert entry.detail["num_left_out"] == 2


def test_nan_and_infinity_are_refused(alice_client):
    lines = "".join(
        f'{{"question": "a", "solution": {number}, "level": 1}}\n'
        for number in ("NaN", "Infinity", "-Infinity", "1e999")
    )
    url = upload(alice_client, MESSY + lines.encode())

    answer = post(alice_client, url)
    fixed = post(alice_client, url, leave_out="6")

    group = answer.context["refusals"].groups[-1]
    assert (group.count, group.column) == (4, "solution")
    assert [one.line for one in group.first] == [9, 10, 11]
    assert fixed.status_code == 302


def test_rows_are_skipped_only_by_the_exact_count(alice_client):
    url = upload(alice_client, MESSY)

    for count in ("1", "3", "0", "-2", "2.0", "", "9" * 30, "x"):
        answer = post(alice_client, url, leave_out=count)

        assert answer.status_code == 422
        assert answer.context["refusals"].count == 2
    assert Dataset.objects.count() == 0
    assert Upload.objects.count() == 1


def test_other_columns_need_a_new_count(alice_client):
    url = upload(alice_client, MESSY)
    post(alice_client, url)

    answer = post(alice_client, url, leave_out="2", answer="")

    assert answer.status_code == 422
    assert answer.context["refusals"].num_good == 7
    assert post(alice_client, url, leave_out="1", answer="").status_code == 302
    assert DatasetVersion.objects.get().num_rows == 7


def test_a_file_without_errors_skips_no_rows(alice_client):
    url = upload(alice_client)

    assert post(alice_client, url, leave_out="2").status_code == 302
    version = DatasetVersion.objects.get()
    assert (version.num_rows, version.num_left_out, version.left_out) == (2, 0, [])


def test_a_file_with_an_unreadable_end_cannot_be_imported_in_part(alice_client):
    content = b'question,solution,level\na,b,1\nc,d,2\n"e,f,3\ng,h,4\n'
    url = upload(alice_client, content, "sums.csv")

    answer = post(alice_client, url)

    assert "leave_out" not in answer.text
    assert 'name="retry"' in answer.text
    assert post(alice_client, url, leave_out="1").status_code == 422
    assert Dataset.objects.count() == 0


def test_without_a_valid_row_there_is_nothing_to_import(alice_client):
    url = upload(alice_client, jsonl([BAD, BAD]))

    answer = post(alice_client, url)

    assert answer.context["refusals"].num_good == 0
    assert "leave_out" not in answer.text
    assert post(alice_client, url, leave_out="2").status_code == 422
    assert Dataset.objects.count() == 0


def test_skipped_rows_are_kept_by_problem(alice_client):
    url = upload(alice_client, jsonl([*RECORDS, *[BAD] * 714, {"question": "a"}]))

    page = alice_client.post(url, {**MAPPING, "leave_out": "715"}, follow=True)

    assert "715 skipped" in page.content.decode()
    left_out = page.context["left_out"]
    assert [group.count for group in left_out.groups] == [714, 1]
    assert [refusal.line for refusal in left_out.groups[0].first] == [3, 4, 5]
    assert len(DatasetVersion.objects.get().left_out) == 2


def test_rows_that_an_older_version_skipped_are_shown(alice_client):
    alice_client.post(upload(alice_client), MAPPING)
    single = Refusal(line=7, column="level", problem="Not finite.", remedy="Use null.")
    DatasetVersion.objects.update(num_left_out=1, left_out=[single.as_json()])

    page = alice_client.get(f"/alpha/datasets/{Dataset.objects.get().pk}/")

    (group,) = page.context["left_out"].groups
    assert (group.count, group.first) == (1, [single])
    assert "Not finite." in page.text


def test_upload_a_corrected_file_discards_the_old_one(alice_client):
    post(alice_client, upload(alice_client))
    dataset = Dataset.objects.get()
    url = upload(alice_client, MESSY, query=f"?dataset={dataset.pk}")

    answer = alice_client.post(url, {"retry": "1"})

    assert answer["Location"] == f"/alpha/datasets/upload?dataset={dataset.pk}"
    assert Upload.objects.count() == 0


MANY = jsonl([{"question": "a" * 10_000, "solution": "b"}] * 2_000)
COLUMNS = Mapping(prompt="question", answer="solution")


def test_an_import_reports_its_progress(alice_client):
    upload(alice_client, MANY)
    read: list[tuple[int, int]] = []
    stored: list[tuple[int, int]] = []

    import_upload(
        upload=Upload.objects.get(),
        mapping=COLUMNS,
        name="Many",
        user=None,
        on_read=lambda *seen: read.append(seen),
        on_stored=lambda *seen: stored.append(seen),
    )

    for reports in (read, stored):
        assert len(reports) > 1
        assert reports == sorted(reports)
        assert len({total for _, total in reports}) == 1
    assert read[-1][0] <= read[-1][1] == len(MANY)
    assert stored[-1][0] == stored[-1][1]


class Cancelled(Exception):
    pass


@pytest.mark.parametrize("stage", ["on_read", "on_stored"])
def test_a_job_can_end_the_import_at_any_stage(alice_client, stage):
    upload(alice_client, MANY)

    def cancel(done: int, total: int) -> None:
        if done:
            raise Cancelled

    with pytest.raises(Cancelled):
        import_upload(
            upload=Upload.objects.get(),
            mapping=COLUMNS,
            name="Many",
            user=None,
            **{stage: cancel},
        )

    assert Dataset.objects.count() == 0
    assert Upload.objects.get().path.exists(), "the file waits for another try"


def test_bad_rows_are_counted_to_the_end_though_none_is_stored(alice_client):
    upload(alice_client, jsonl([BAD]) + MANY)
    read: list[int] = []

    with pytest.raises(ImportRefused) as refused:
        import_upload(
            upload=Upload.objects.get(),
            mapping=COLUMNS,
            name="Many",
            user=None,
            on_read=lambda done, total: read.append(done),
        )

    assert refused.value.refusals.num_good == 2_000
    assert len(read) > 1


def test_a_preview_of_huge_rows_stays_small(alice_client):
    rows = [{"question": "a" * 2**20, "solution": "b"}] * 15
    url = upload(alice_client, "".join(json.dumps(r) + "\n" for r in rows).encode())

    page = alice_client.get(url)

    assert len(page.context["seen"].records) == 1
    assert page.context["seen"].refusals.num_good == 15


def fixes_of(page: Any) -> list[list[str]]:
    return [[label for label, _ in it["fixes"]] for it in page.context["problems"]]


def test_the_button_says_how_many_rows_an_import_brings(alice_client):
    for content, leave_out, is_possible in (
        (jsonl(RECORDS), 0, True),
        (MESSY, 2, True),
        (jsonl([BAD, BAD]), None, False),
        (MANY, None, True),  # a worker reads them
    ):
        page = alice_client.get(upload(alice_client, content))

        outlook = page.context["outlook"]
        assert (outlook.leave_out, outlook.is_possible) == (leave_out, is_possible)
        assert ('aria-describedby="import-note" disabled' in page.text) != is_possible
        assert ('name="leave_out" value="2"' in page.text) == (leave_out == 2)


def test_a_fix_of_the_columns_lets_the_rows_in(alice_client):
    chat = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    given = {"key": 7, "chat": chat, "graded": {"truth": "4"}, "note": "?", "bad": []}
    names = ["name", "prompt", "answer", "last_reply", "columns"]
    for changes, fix in (
        (("key", "note", "answer", []), "Use “chat” as the prompt"),
        (("chat", "graded", "answer", []), "Use “graded.truth” as the answer"),
        (("chat", "graded", "answer", ["note"]), "Keep “graded” as an extra column"),
        (("chat", "bad", "answer", []), "Import without answers"),
        (("chat", "", "refuse", []), "Remove the last reply"),
        (("chat", "", "refuse", []), "Use the last reply as the answer"),
    ):
        url = upload(alice_client, jsonl([given] * 3))
        page = alice_client.get(url, dict(zip(names, ("Sums", *changes), strict=True)))
        (problem,) = page.context["problems"]
        assert problem["group"].count == 3
        query = dict(problem["fixes"])[fix]
        assert f"?{query}".replace("&", "&amp;") in page.text

        fixed = alice_client.get(f"{url}?{query}")

        assert fixed.context["problems"] == []
        assert fixed.context["outlook"].leave_out == 0
        assert fixed.context["form"]["name"].value() == "Sums"
        assert {*changes[3]} <= {*fixed.context["form"]["columns"].value()}


def test_a_fix_keeps_the_good_rows(alice_client):
    """A column that only the failing rows have is no prompt of all rows."""
    rows = [*RECORDS * 3, {"question": None, "text": "5+5?", "solution": "10"}]

    page = alice_client.get(upload(alice_client, jsonl(rows)))

    assert fixes_of(page) == [[]]


def test_an_extra_column_that_cannot_be_stored_is_left_out(alice_client):
    line = b'{"question": "a", "solution": "b", "level": "\\u0000"}\n'
    url = upload(alice_client, line)

    page = alice_client.get(url)

    assert fixes_of(page) == [["Leave out column “level”"]]


def test_errors_beyond_the_first_rows_have_fixes_too(alice_client):
    bad = [{"question": "a"}] * 3_000
    url = upload(alice_client, jsonl([*RECORDS * 2_000, *bad]))
    job, _ = start_job(
        upload=Upload.objects.get(),
        mapping=Mapping(prompt="question", answer="solution"),
        name="Sums",
        user=None,
    )
    begin_work(job, at_once=True)

    page = alice_client.get(url)

    assert page.context["outlook"].leave_out == len(bad)
    assert fixes_of(page) == [["Import without answers"]]


def test_few_bad_rows_are_skipped_without_a_change_of_all_rows(alice_client):
    url = upload(alice_client, jsonl([*RECORDS * 3, {"question": "a"}]))

    page = alice_client.get(url)

    assert page.context["outlook"].leave_out == 1
    assert fixes_of(page) == [[]]


def test_the_preview_begins_a_prompt_with_its_system_message(alice_client):
    row = {"system": "Be short.", "user": "2+2?", "assistant": "4"}
    url = upload(alice_client, jsonl([row] * 3))

    page = alice_client.get(url)
    other = alice_client.get(url, {"prompt": "user", "system": "user"})

    assert page.context["form"]["system"].value() == "system"
    assert [row.prompt[0]["content"] for _, row in page.context["mapped"]] == (
        ["Be short."] * 3
    )
    assert other.context["form"].has_error("system", "datasets.system_is_prompt")
    assert {row.prompt for _, row in other.context["mapped"]} == {"2+2?"}
