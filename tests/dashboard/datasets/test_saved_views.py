"""Views of a version saved as a dataset."""

import re
import tracemalloc
from html import unescape
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets import row_storage, selections
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob
from dashboard.datasets.row import Row
from dashboard.datasets.row_storage import write_rows
from dashboard.datasets.services import do_nothing
from dashboard.datasets.trash import delete_dataset, trash_dataset
from dashboard.jobs.kinds import Context, JobReleased
from dashboard.jobs.models import JobState
from dashboard.project.errors import UserError
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.jobs.working import do, take
from tests.page_client import words

ROWS = [
    *(
        Row(
            prompt=f"What is {i}?",
            answer=None if i % 7 == 3 else str(i),
            columns={"level": i % 3, "x": [1e16, -0.0, None, "a\tb\\"]},
        )
        for i in range(40)
    ),
    Row(prompt=[{"role": "user", "content": "What now?"}], columns={"level": 1}),
]
MAPPING = {"prompt": "q", "answer": "a", "columns": ["level", "x"]}


@pytest.fixture(scope="module")
def version(shared_team) -> DatasetVersion:
    return store_dataset(shared_team, ROWS, mapping=MAPPING)


@pytest.fixture
def left_to_a_worker(monkeypatch) -> None:
    monkeypatch.setattr("dashboard.datasets.row_filters.MAX_ROWS_OF_PAGE", 0)
    monkeypatch.setattr(selections, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(row_storage, "COPIED_AT_ONCE", 5)


def address(version: DatasetVersion, query: str = "") -> str:
    return f"/alpha/datasets/{version.dataset_id}/save?version=1&{query}"


def save(
    client: Client,
    version: DatasetVersion,
    query: str = "",
    *,
    key: UUID | None = None,
    **changes: str,
) -> Any:
    form = {"target": "", "name": "Mine", "key": str(key or uuid4()), **changes}
    return client.post(address(version, query), form)


def rows_of(version: DatasetVersion) -> list[Row]:
    return [row.as_row() for row in version.rows.order_by("position")]


def made(name: str = "Mine") -> DatasetVersion:
    return DatasetVersion.objects.get(dataset__name=name, number=1)


VIEWS = {
    "answer=no": lambda row: row.answer is None,
    "kind=chat": lambda row: not isinstance(row.prompt, str),
    "column=level&value=2": lambda row: row.columns["level"] == 2,
    "q=is+1&answer=yes": lambda row: "is 1" in str(row.prompt) and row.answer,
    "": lambda row: True,
}


@pytest.mark.parametrize("by_worker", [False, True])
def test_exactly_the_matching_rows_are_saved_in_their_order(
    alice_client, version, by_worker, request, tmp_path
):
    if by_worker:
        request.getfixturevalue("left_to_a_worker")
    for number, (query, is_wanted) in enumerate(VIEWS.items()):
        name = f"View {number}"

        answer = save(alice_client, version, query, name=name)

        assert answer.status_code == 302
        if by_worker:
            assert ImportJob.objects.latest("pk").state == JobState.QUEUED
            do(take())
        assert rows_of(made(name)) == [row for row in ROWS if is_wanted(row)]
        assert made(name).mapping == MAPPING
        # Which compares the hash.
        write_rows(made(name), tmp_path / f"{made(name).pk}.jsonl")


def test_a_sorted_view_is_saved_in_its_order(alice_client, version):
    save(alice_client, version, "answer=yes&sort=-answer")

    answers = [row.answer for row in rows_of(made())]
    assert answers == sorted(answers, key=str, reverse=True)
    assert len(answers) == 34


def test_the_same_rows_have_the_hash_that_an_import_gives_them(alice_client, version):
    save(alice_client, version, "")

    assert made().content_sha256 == version.content_sha256


def test_before_it_is_saved_the_page_says_how_many_rows_there_are(
    alice_client, version
):
    answer = alice_client.get(address(version, "answer=no"))

    assert answer.context["count"].num_matching == 7
    assert "7 of 41 rows" in words(answer)


def test_a_long_count_continues_on_the_page(alice_client, version, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.row_search.FIRST_WINDOW", 16)
    monkeypatch.setattr("dashboard.datasets.row_search.LARGEST_WINDOW", 16)
    monkeypatch.setattr("dashboard.pages.dataset_making.COUNT_SECONDS", 0)
    url, texts = address(version, "answer=no"), []

    for _ in range(3):
        answer = alice_client.get(url, headers={"HX-Request": "true"})
        texts.append(words(answer))
        if match := re.search(r'hx-get="([^"]*)"', answer.content.decode()):
            url = url.split("?")[0] + match[1].replace("&amp;", "&")

    assert "16 of 41" in texts[0]
    assert "32 of 41" in texts[1]
    assert texts[2].startswith("7 of 41")


def test_a_saved_view_links_to_its_source(alice_client, version):
    save(alice_client, version, "answer=no&sort=prompt_length")

    assert made().source["parent_sha256"] == version.content_sha256
    assert made().source_text.startswith("7 of 41 rows")
    page = alice_client.get(f"/alpha/datasets/{made().dataset_id}/versions")
    assert "7 of 41 rows" in words(page)
    link = f"{version.dataset_id}/?version=1&amp;answer=no&amp;sort=prompt_length"
    assert f'href="/alpha/datasets/{link}#rows"' in page.content.decode()


def test_a_deleted_source_is_still_named(alice_client, version):
    save(alice_client, version, "answer=no")
    trash_dataset(version.dataset, None)
    delete_dataset(version.dataset, None)

    page = alice_client.get(f"/alpha/datasets/{made().dataset_id}/versions")

    assert made().source_text in words(page)


def test_rows_become_the_next_version_of_a_dataset(alice_client, version):
    target = str(version.dataset_id)

    answer = save(alice_client, version, "answer=no", target=target, name="")

    assert answer.url == f"/alpha/datasets/{target}/"
    new = version.dataset.versions.get(number=2)
    assert new.num_rows == 7
    again = save(alice_client, version, "answer=no", target=target, name="")
    assert "version 2" in words(alice_client.get(again.url))
    assert version.dataset.versions.count() == 2


def test_an_invalid_selection_stores_nothing(alice_client, version):
    for query, changes, field in (
        ("", {"name": ""}, "name"),
        ("", {"name": "Sums"}, "name"),
        ("", {"target": "999999"}, "target"),
        ("", {"key": "x"}, "key"),
        ("q=nowhere", {}, "__all__"),
    ):
        answer = save(alice_client, version, query, **changes)

        assert answer.status_code == 422
        assert set(answer.context["form"].errors) == {field}
    assert Dataset.objects.count() == 1


def test_an_invalid_view_is_not_saved(alice_client, version):
    assert save(alice_client, version, "column=nope&value=1").status_code == 404
    assert save(alice_client, version, "min_chars=9&max_chars=1").status_code == 404


def test_a_form_sent_twice_makes_one_dataset(alice_client, version):
    key = uuid4()

    first = save(alice_client, version, "answer=no", key=key)
    second = save(alice_client, version, "answer=no", key=key)

    assert first.url == second.url
    assert ImportJob.objects.count() == 1
    assert Dataset.objects.count() == 2
    other = save(alice_client, version, "answer=no", key=key, name="Other")
    assert other.url != first.url, "deleted back to, and changed"


def test_a_failed_selection_can_be_sent_again(alice_client, version, monkeypatch):
    def refuse(_num_bytes: int, *, purpose: str) -> None:
        raise ValueError(f"disk full: {purpose}")

    key = uuid4()
    with monkeypatch.context() as full:
        full.setattr(selections, "check_disk_space_to_store", refuse)
        for _ in range(2):
            answer = save(alice_client, version, "answer=no", key=key)
            assert answer.status_code == 422
            assert "disk full" in words(answer)

    assert save(alice_client, version, "answer=no", key=key).status_code == 302
    assert made().num_rows == 7


@pytest.mark.usefixtures("left_to_a_worker")
def test_a_selection_is_stopped_and_retried(alice_client, version):
    page = save(alice_client, version, "answer=yes").url
    job = ImportJob.objects.get()
    claim = take()
    seen: list[tuple[int, int]] = []
    alice_client.post(page, {"stop": "1"})

    def stop(context: Context) -> None:
        if "Storing" not in context.noted["message"]:
            return
        seen.append((context.noted["done"], context.noted["total"]))
        if context.noted["done"] >= 10:
            raise JobReleased

    do(claim, on_progress=stop)

    assert seen == [(0, 34), (5, 34), (10, 34)]
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert Dataset.objects.count() == 1
    again = alice_client.post(page, {"again": "1"})
    assert alice_client.post(page, {"again": "1"}).url == again.url
    do(take())
    assert made().num_rows == 34
    assert "34 rows" in words(alice_client.get(again.url))


@pytest.mark.usefixtures("left_to_a_worker")
def test_a_selection_reports_its_progress(alice_client, version):
    page = save(alice_client, version, "kind=chat").url
    claim = take()
    seen: list[int] = []

    def record(context: Context) -> None:
        if "Storing" in context.noted["message"]:
            return
        claim.held().update(**context.noted)
        seen.append(context.noted["done"])
        assert f"{seen[-1]} of 41 rows" in words(alice_client.get(page))

    do(claim, on_progress=record)

    assert seen == [7, 14, 21, 28, 35, 41]


@pytest.mark.usefixtures("left_to_a_worker")
@pytest.mark.parametrize("deleted", ["parent", "target"])
def test_a_deleted_source_or_target_fails_the_job(alice_client, version, team, deleted):
    target = store_dataset(team, ROWS[:1], name="T", mapping=MAPPING)
    page = save(alice_client, version, target=str(target.dataset_id), name="").url
    trash_dataset((version if deleted == "parent" else target).dataset, None)
    if deleted == "parent":
        delete_dataset(version.dataset, None)
    do(take())

    job = ImportJob.objects.get()
    assert job.state == JobState.FAILED
    assert job.error in unescape(alice_client.get(page).text)
    assert DatasetVersion.objects.filter(dataset=target.dataset).count() == 1


def test_rows_missing_from_the_database_are_an_error(version):
    version.rows.filter(position=3).delete()

    with pytest.raises(UserError) as missing:
        row_storage.select_rows(version, [([2, 3], 2)], on_read=do_nothing)
    assert missing.value.code == "datasets.rows_missing"


def test_memory_does_not_grow_with_the_rows(team):
    text = "x" * 8_000
    peaks = []
    for num_rows in (250, 1_000):
        version = store_dataset(
            team,
            (Row(prompt=f"{i} {text}") for i in range(num_rows)),
            name=f"{num_rows}",
            mapping=MAPPING,
        )
        source = {"query": "q=x", "how": "", "kind": "view", "num_parent_rows": 1}
        job, _ = selections.start_selection(
            parent=version,
            source=source,
            name=f"{num_rows} again",
            dataset=None,
            user=None,
            key=uuid4(),
        )
        tracemalloc.start()
        selections.make_selection(job)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    # 8 MB of text are copied; what grows are four bytes a row.
    assert peaks[1] < peaks[0] + 1_000_000


def test_a_viewer_sees_rows_but_does_not_save(alice_client, bob_client, version):
    assert save(bob_client, version).status_code == 403
    assert "data-busy-text" not in bob_client.get(address(version)).text
    rows = f"/alpha/datasets/{version.dataset_id}/?answer=no"
    assert "Save as dataset" not in bob_client.get(rows).content.decode()
    assert "Save as dataset" in alice_client.get(rows).content.decode()


def test_rows_go_to_the_own_team_only(alice_client, charlie_client, version):
    other = Team.objects.get(slug="other")
    theirs = Dataset.objects.create(team=other, name="Theirs")

    assert save(charlie_client, version).status_code == 404
    assert save(alice_client, version, target=str(theirs.pk)).status_code == 422
    assert not theirs.versions.exists()


def test_a_selection_keeps_the_environment(alice_client, version):
    version.environment = {"kind": "guess", "max_tokens": 64}
    version.save()

    save(alice_client, version, "answer=no")

    assert made().environment == version.environment
    assert "environment" not in made().source
