from typing import Any

import pytest

from dashboard.accounts.models import Team, User
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import list_datasets
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.pages.datasets import FEW
from tests.dashboard.datasets.test_upload import upload


def make(team: Team, user: User | None, **changes: Any) -> DatasetVersion:
    rows = [
        Row(prompt=f"What is {i}% of <b>200</b>?", answer=str(2 * i), columns={"i": i})
        for i in range(45)
    ]
    given = {"name": "Shares", "rows": rows, "mapping": {"columns": ["i"]}, **changes}
    return create_dataset_version(team=team, source={}, user=user, **given)


@pytest.fixture(scope="module")
def version(shared_team, shared_alice) -> DatasetVersion:
    return make(shared_team, shared_alice)


def test_an_empty_list_takes_a_file(alice_client, bob_client):
    page = alice_client.get("/alpha/datasets/").content.decode()

    assert 'action="/alpha/datasets/upload"' in page
    assert "data-upload" not in bob_client.get("/alpha/datasets/").text


def test_a_short_list_takes_a_file_below_it(alice_client, bob_client, team, alice):
    for number in range(FEW):
        make(team, alice, name=f"Dataset {number}")

    assert "data-upload" in alice_client.get("/alpha/datasets/").text
    assert "data-upload" not in alice_client.get("/alpha/datasets/?q=Dataset").text
    assert "data-upload" not in bob_client.get("/alpha/datasets/").text

    make(team, alice, name="One more")

    assert "data-upload" not in alice_client.get("/alpha/datasets/").text


def test_the_list_costs_the_same_queries_for_any_number(
    team, alice, django_assert_num_queries
):
    for number in range(5):
        make(team, alice, name=f"Dataset {number}")

    with django_assert_num_queries(2):
        listed = list(list_datasets(team))
        assert [dataset.newest[0].num_rows for dataset in listed] == [45] * 5
        assert [dataset.num_runs for dataset in listed] == [0] * 5


def test_a_row_of_the_list_describes_the_newest_version(alice_client, team, version):
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 +\n2?"},
        {"role": "assistant", "content": "5"},
    ]
    options = {"choices": ["x", "y"]}
    for number, row in enumerate(
        (
            Row(prompt=chat),
            Row(prompt="a" * 3_000, answer="red"),
            Row(prompt="a", answer="B", columns=options),
            Row(prompt="f", columns={"tests": ["assert f()"]}),
        )
    ):
        make(team, None, name=f"Set {number}", rows=[row], mapping={})
    make(team, None, dataset=version.dataset, rows=[Row(prompt="new")])

    page = alice_client.get("/alpha/datasets/").context["page"]

    assert [
        (it.name, it.newest[0].first_prompt[:9], it.newest[0].answer_type)
        for it in page
    ] == [
        ("Shares", "new", "none"),
        ("Set 3", "f", "code"),
        ("Set 2", "a", "choice"),
        ("Set 1", "a" * 9, "text"),
        ("Set 0", "2 + 2?", "none"),
    ]


def test_the_list_is_searched_by_name_and_first_prompt(alice_client, team, version):
    make(team, None, name="Other", rows=[Row(prompt="Which CITY?", answer="Bern")])

    def found(text: str) -> list[str]:
        page = alice_client.get("/alpha/datasets/", {"q": text})
        assert page.status_code == 200
        return [dataset.name for dataset in page.context["page"]]

    assert found("shar") == ["Shares"]
    assert found("city") == ["Other"]
    assert found("") == ["Other", "Shares"]
    assert found("%") == ["Shares"]  # no wildcard: the text of its prompt
    assert found("nothing\x00") == []


def test_unfinished_uploads_are_the_first_rows(alice_client, version):
    address = upload(alice_client)

    page = alice_client.get("/alpha/datasets/").text

    assert page.index(f'href="{address}"') < page.index("dataset-name")


def test_row_content_is_escaped(alice_client, version):
    page = alice_client.get(f"/alpha/datasets/{version.dataset_id}/").content.decode()

    assert "<b>200" not in page
    assert "&lt;b&gt;200" in page


def test_another_team_cannot_add_a_version(charlie_client, version):
    url = f"/other/datasets/upload?dataset={version.dataset_id}"

    assert charlie_client.get(url).status_code == 404
    assert charlie_client.post(url).status_code == 404


def test_an_older_version_has_an_address(alice_client, team, version):
    make(team, None, rows=[Row(prompt="new")], dataset=version.dataset)
    url = f"/alpha/datasets/{version.dataset_id}/"

    assert alice_client.get(url).context["version"].number == 2
    assert alice_client.get(url, {"version": 1}).context["version"] == version
    assert alice_client.get(url, {"version": 3}).status_code == 404
    assert alice_client.get(url, {"version": "\x00"}).status_code == 404


def test_an_invalid_dataset_id_is_not_found(alice_client):
    for wanted in ("x", "-1", "1e9", "9" * 30, "9" * 18, "٣"):
        answer = alice_client.get("/alpha/datasets/upload", {"dataset": wanted})

        assert answer.status_code == 404, wanted
