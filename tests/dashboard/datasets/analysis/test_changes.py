"""Changes between versions, and the runs that used a version."""

import re
from typing import Any

import pytest

from dashboard.accounts.models import Team
from dashboard.datasets import row_filters
from dashboard.datasets.analysis.differences import make_difference
from dashboard.datasets.models import DatasetVersion, VersionDifference
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from tests.dashboard.completions.factories import make_run
from tests.dashboard.jobs.working import waiting
from tests.page_client import words

OLD = [Row(prompt=f"prompt {i}.", answer=str(i), columns={"i": i}) for i in range(30)]
NEW = [
    OLD[29],  # moved
    *OLD[:3],
    Row(prompt="prompt 3.", answer="three", columns={"i": 3}),
    Row(prompt="prompt 4.", answer="4", columns={"i": "four"}),
    *(Row(prompt=f"new {i}.") for i in range(25)),
]


def create(team: Team, rows: list[Row], **changes: Any) -> DatasetVersion:
    given = {"name": "Sums", "mapping": {"columns": ["i"]}, **changes}
    return create_dataset_version(team=team, rows=rows, source={}, user=None, **given)


@pytest.fixture
def versions(team) -> list[DatasetVersion]:
    old = create(team, OLD)
    return [old, create(team, NEW, dataset=old.dataset)]


def url(version: DatasetVersion) -> str:
    return f"/alpha/datasets/{version.dataset_id}/changes"


def test_a_version_is_compared_with_the_one_before(alice_client, versions):
    answer = alice_client.get(url(versions[1]))

    text = words(answer)
    assert answer.context["found"].result == {
        "same": 4,
        "moved": 1,
        "changed": 2,
        "added": 25,
        "removed": 24,
    }
    assert "changed: 2 added: 25 removed: 24" in text
    assert "Pages of changes" not in answer.text  # there is one
    assert "3 three" in text  # old answer, new answer
    assert "i 4 → four" in text  # a column's values


def test_several_answers_are_another_answer_than_their_text(alice_client, team):
    old = create(team, [Row(prompt="a", answer='["4","four"]'), Row(prompt="b")])
    several = [Row(prompt="a", answer=["4", "four"]), Row(prompt="b")]
    new = create(team, several, dataset=old.dataset)

    answer = alice_client.get(url(new))

    assert answer.context["found"].result | {"moved": 0} == {
        "same": 1, "moved": 0, "changed": 1, "added": 0, "removed": 0,
    }  # fmt: skip
    (change,) = answer.context["page"].items
    assert change.has_other_answer
    assert "any of 4 four" in words(answer)


def test_each_kind_is_paged(alice_client, versions):
    for query, line, positions in (
        ({"kind": "added"}, "1–20 of 25 added", [*range(6, 26)]),
        ({"kind": "added", "from": 20}, "21–25 of 25 added", [*range(26, 31)]),
        ({"kind": "removed", "from": 20}, "21–24 of 24 removed", [*range(25, 29)]),
        ({"kind": "removed", "from": "9" * 9}, "21–24 of 24", [*range(25, 29)]),
        ({"kind": "x", "from": "x"}, "changed: 2", [4, 5]),
    ):
        answer = alice_client.get(url(versions[1]), query)

        assert line in words(answer)
        shown = [change.row.position for change in answer.context["page"].items]
        assert shown == positions


def test_in_reverse_added_rows_are_removed(alice_client, versions):
    answer = alice_client.get(url(versions[1]), {"version": 1, "old": 2})

    assert "changed: 2 added: 24 removed: 25" in words(answer)


def test_a_version_is_not_compared_with_itself_or_nothing(alice_client, team, versions):
    for query in ({"version": 1}, {"version": 2, "old": 2}):
        answer = alice_client.get(url(versions[0]), query)

        assert answer.context["found"] is None
    alone = create(team, OLD, name="Alone")
    assert f"?dataset={alone.dataset_id}" in alice_client.get(url(alone)).text
    assert not VersionDifference.objects.exists()


def test_large_versions_are_left_to_a_worker(alice_client, versions, monkeypatch):
    monkeypatch.setattr(row_filters, "MAX_ROWS_OF_PAGE", 3)

    assert "0 of 61" in words(alice_client.get(url(versions[1])))
    found = VersionDifference.objects.get()
    assert waiting() == [("dataset.difference", found.pk)]

    make_difference(found.pk)

    assert "added: 25" in words(alice_client.get(url(versions[1])))
    assert len(waiting()) == 1


def test_a_version_of_another_dataset_is_not_compared(alice_client, team, versions):
    assert alice_client.get(url(versions[1]), {"old": 3}).status_code == 404


def test_the_page_costs_the_same_queries_for_any_rows(
    alice_client, versions, django_assert_num_queries
):
    alice_client.get(url(versions[1]))

    for kind, number in (("changed", 10), ("added", 9)):
        with django_assert_num_queries(number):
            alice_client.get(url(versions[1]), {"kind": kind})


def test_runs_that_used_a_version_are_linked(alice_client, team):
    run = make_run(team, name="first try")
    version = run.dataset_version

    url = f"/alpha/datasets/{version.dataset_id}/versions"
    page = alice_client.get(url).content.decode()

    assert f'href="/alpha/runs/{run.pk}/">first try</a>' in page
    assert "1 run</a>" not in page


def test_five_runs_are_named_and_all_are_linked(alice_client, team, monkeypatch):
    version = make_run(team).dataset_version
    for _ in range(6):
        make_run(team, dataset_version=version)

    url = f"/alpha/datasets/{version.dataset_id}/versions"
    page = alice_client.get(url).content.decode()

    assert len(re.findall(r'href="/alpha/runs/\d+/"', page)) == 5
    assert f'href="/alpha/runs/?dataset={version.dataset_id}">7 runs</a>' in page


def test_a_versions_hash_is_there_to_be_copied(alice_client, versions):
    page = alice_client.get(f"/alpha/datasets/{versions[0].dataset_id}/versions")

    for version in versions:
        assert f'data-copy="{version.content_sha256}"' in page.content.decode()
