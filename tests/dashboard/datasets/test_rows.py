"""Filters, order and paging of the rows of a version."""

import re
from itertools import chain
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets import row_search
from dashboard.datasets.models import DatasetVersion, RowOrder
from dashboard.datasets.row import Row
from dashboard.datasets.row_pages import RowPage
from dashboard.datasets.row_search import make_order
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.jobs.working import waiting


def create(team: Team, rows: list[Row]) -> DatasetVersion:
    return store_dataset(team, rows, name="Shares", mapping={"columns": ["i", "of"]})


def shares(number: int) -> list[Row]:
    return [
        Row(
            prompt=f"What is {i}% of {'9' * (i % 7)}200?",
            answer=None if i % 9 == 8 else str(2 * i),
            columns={"i": i, "of": "two" if i % 2 else None},
        )
        for i in range(number)
    ]


CHAT = Row(
    prompt=[
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": 'Say "é"\nand 5 \\ 7'},
    ],
    answer="é",
)


@pytest.fixture
def version(team) -> DatasetVersion:
    return create(team, [*shares(45), CHAT])


def get_page(client: Client, version: DatasetVersion, **query: Any) -> RowPage:
    answer = client.get(f"/alpha/datasets/{version.dataset_id}/", query)
    assert answer.status_code == 200
    page: RowPage = answer.context["page"]
    return page


def positions(page: RowPage) -> list[int]:
    return [row.position for row in page.rows]


def visit(
    client: Client, version: DatasetVersion, **query: Any
) -> tuple[list[int], dict[str, dict[str, str]]]:
    """The rows of a page, and the queries of its links by name."""
    answer = client.get(f"/alpha/datasets/{version.dataset_id}/", query)
    found = re.findall(r'href="(\?[^"]*)"[^>]*>(\w+)</a>', answer.content.decode())
    links = {}
    for address, name in found:
        given = parse_qs(urlsplit(address.replace("&amp;", "&")).query)
        links[name] = {key: values[0] for key, values in given.items()}
    return positions(answer.context["page"]), links


def walk(client: Client, version: DatasetVersion, by: str, **query: Any) -> list[Any]:
    """The rows of each page, following the links."""
    rows, links = visit(client, version, **query)
    seen = [rows]
    while by in links:
        rows, links = visit(client, version, **links[by])
        seen.append(rows)
        assert len(seen) < 60, "the links lead round in a circle"
    return seen


def test_rows_are_paged_by_their_number(alice_client, version):
    pages = walk(alice_client, version, "Next")

    assert pages == [list(range(20)), list(range(20, 40)), list(range(40, 46))]
    assert get_page(alice_client, version, **{"from": 40}).summary == "41–46 of 46 rows"
    _, links = visit(alice_client, version)
    assert walk(alice_client, version, "Previous", **links["Last"]) == pages[::-1]


def test_an_invalid_page_start_is_ignored(alice_client, version):
    for start in ("99", "x", "-1", "9" * 30, "٣"):
        assert get_page(alice_client, version, **{"from": start}).rows
        assert get_page(alice_client, version, q="What", to=start).rows is not None
        assert get_page(alice_client, version, on=start, have=start).rows is not None


@pytest.mark.parametrize(
    ("window", "query", "sort"),
    [
        (1, {"q": "4"}, "-position"),
        (64, {"q": "4"}, "-answer"),
        (1, {"answer": "yes"}, "-answer"),
        (64, {"answer": "yes"}, "-position"),
    ],
)
def test_search_pages_show_each_row_once_in_both_directions(
    alice_client, version, monkeypatch, window, query, sort
):
    monkeypatch.setattr(row_search, "FIRST_WINDOW", window)
    monkeypatch.setattr(row_search, "LARGEST_WINDOW", window)
    monkeypatch.setattr("dashboard.datasets.row_pages.ROWS_PER_PAGE", 6)
    filters = {"sort": sort, **query}

    forward = walk(alice_client, version, "Next", **filters)
    _, links = visit(alice_client, version, **filters)
    backward = walk(alice_client, version, "Previous", **links["Last"])

    found = list(chain(*forward))
    assert sorted(found) == sorted(set(found))
    assert list(chain(*backward[::-1])) == found
    assert get_page(alice_client, version, **query).count.num_matching == len(found)


def test_rows_are_searched_as_plain_text(alice_client, version):
    counts = {"44%": 1, "WHAT": 45, "%": 45, "_": 0, "88": 0, "\x00": 46, "'": 0}
    for text, count in counts.items():
        found = get_page(alice_client, version, q=text).count

        assert found is not None
        assert (found.num_matching, found.is_exact) == (count, True), text


def test_the_search_reads_chat_messages(alice_client, version):
    for text in ('say "É"', "\nand", "5 \\ 7", "be brief"):
        assert positions(get_page(alice_client, version, q=text)) == [45], text
    for text in ("role", "system", "content"):
        assert positions(get_page(alice_client, version, q=text)) == [], text


SEVERAL = [
    Row(prompt="a", answer=["\\frac{1}{2}", 'say "half"'], columns={"i": {"of": 2}}),
    Row(prompt="b", answer=["0.5", "a half as well"], columns={"i": {"of": 10}}),
    Row(
        prompt=[
            {"role": "user", "content": "When?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"function": {"name": "find", "arguments": {"to": "Bern"}}}
                ],
            },
            {"role": "tool", "content": "7:02"},
        ],
        answer="7",
        columns={"i": [5]},
    ),
]


def test_several_answers_and_calls_of_tools_are_searched_and_sorted(alice_client, team):
    version = create(team, SEVERAL)

    for query, wanted in (
        ({"q": "\\FRAC{1}"}, [0]),
        ({"q": 'say "'}, [0]),
        ({"q": "half"}, [0, 1]),
        ({"q": '","'}, []),  # between two answers
        ({"q": "bern"}, [2]),
        ({"q": "find"}, [2]),
        ({"q": "null"}, []),
        ({"q": "arguments"}, []),
        ({"kind": "chat", "max_chars": "9"}, [2]),
        ({"sort": "answer"}, [1, 2, 0]),  # by the first of several
        ({"sort": "answer_length"}, [2, 0, 1]),  # by the longest
        ({"column": "i.of", "value": "10"}, [1]),
        ({"column": "i.0", "value": "5"}, [2]),
        ({"column": "i.of", "value": ""}, [2]),
        ({"sort": "-column:i.of"}, [2, 1, 0]),
    ):
        page = get_page(alice_client, version, **query)
        assert positions(page) == wanted, query


def test_only_a_path_into_a_column_may_be_asked_for(alice_client, team):
    version = create(team, SEVERAL)
    url = f"/alpha/datasets/{version.dataset_id}/"

    answer = alice_client.get(url, {"column": "j.of", "sort": "column:j.of"})

    assert set(answer.context["form"].errors) == {"column", "sort"}
    named = alice_client.get(url, {"column": "i.of", "sort": "-column:i.of"})
    assert named.context["form"].errors == {}
    assert ("i.of", "i.of") in named.context["form"].fields["column"].choices


def test_a_page_of_rows_shows_each_answer_and_call(alice_client, team):
    version = create(team, SEVERAL)

    page = alice_client.get(f"/alpha/datasets/{version.dataset_id}/").content.decode()

    assert page.count("<li>") >= 4
    assert "say &quot;half&quot;" in page
    assert re.search(r"tool-call[^>]*><strong>find</strong> [^<]*Bern", page)
    assert "None" not in re.sub(r"(?s)<script.*?</script>", "", page)


def test_filters_narrow_the_rows(alice_client, version):
    for query, wanted in (
        ({"answer": "no"}, [8, 17, 26, 35, 44]),
        ({"answer": "no", "q": "8%"}, [8]),
        ({"kind": "chat"}, [45]),
        ({"column": "i", "value": "7"}, [7]),
        ({"column": "of", "value": "two", "max_chars": "19"}, [1, 7, 21, 35]),
        ({"column": "of", "value": "", "min_chars": "25"}, [20, 34, 45]),
        ({"min_chars": "26"}, [45]),
        ({"column": "i", "value": "seven"}, []),
    ):
        assert positions(get_page(alice_client, version, **query)) == wanted, query


def test_invalid_filters_are_errors(alice_client, version):
    url = f"/alpha/datasets/{version.dataset_id}/"
    filters = {"min_chars": "9", "max_chars": "3", "column": "x", "sort": "x"}

    answer = alice_client.get(url, filters)

    assert {"max_chars", "column", "sort"} <= set(answer.context["form"].errors)
    assert len(answer.context["page"].rows) == 20


def test_rows_are_sorted(alice_client, version):
    def first(sort: str) -> list[int]:
        return positions(get_page(alice_client, version, sort=sort))[:3]

    assert first("-position") == [45, 44, 43]
    assert first("prompt_length") == [0, 7, 1]
    assert first("-prompt_length") == [45, 41, 34]
    assert first("answer") == [0, 5, 6]  # "0", "10", "12": texts, not numbers
    assert first("-answer") == [44, 35, 26]  # which have none
    assert first("-column:i")[1:] == [44, 43]  # the chat has none
    assert first("column:i") == [0, 1, 2]


def test_many_rows_are_sorted_in_the_background_once(
    alice_client, version, monkeypatch
):
    sorted_at_once = positions(get_page(alice_client, version, sort="-prompt_length"))
    monkeypatch.setattr(row_search, "MAX_SORTED_AT_ONCE", 10)

    before = get_page(alice_client, version, sort="-prompt_length")
    get_page(alice_client, version, sort="prompt_length")

    assert not before.order_is_made
    assert positions(before) == list(range(20))
    order = RowOrder.objects.get()
    assert waiting() == [("dataset.order", order.pk)]

    make_order(order.pk)
    after = get_page(alice_client, version, sort="-prompt_length")

    assert after.order_is_made
    assert positions(after) == sorted_at_once
    page_2 = get_page(alice_client, version, sort="-prompt_length", **{"from": 20})
    assert not set(positions(page_2)) & set(positions(after))


def test_a_long_search_shows_its_progress(alice_client, version, monkeypatch):
    monkeypatch.setattr(row_search, "FIRST_WINDOW", 10)
    monkeypatch.setattr("dashboard.datasets.row_pages.SEARCH_SECONDS", 1e-9)
    monkeypatch.setattr("dashboard.datasets.row_pages.COUNT_SECONDS", 1e-9)
    url = f"/alpha/datasets/{version.dataset_id}/"

    text = alice_client.get(url, {"q": "what is 1"}).content.decode()

    assert "10 of 46 rows" in text
    assert "at least 1" in text
    assert 'hx-get="?q=what+is+1&amp;on=10&amp;have=1"' in text
    further = alice_client.get(
        url, {"q": "what is 1", "on": 10, "have": 1}, headers={"HX-Request": "true"}
    )
    text = further.content.decode()
    assert "<html" not in text
    assert 'id="row-19"' in text
    assert 'id="row-1"' not in text
    assert "20 of 46 rows" in text
    assert further.context["page"].num_shown == 11


def test_a_row_is_found_by_its_number(alice_client, version):
    page = get_page(alice_client, version, row="41")

    assert positions(page) == list(range(40, 46))
    assert page.chosen == 41
    assert get_page(alice_client, version, row=" 4,5".strip()).chosen == 45


def test_an_unknown_row_number_is_an_error(alice_client, version):
    for row in ("46", "-1", "x", "9" * 40, "1e3"):
        page = get_page(alice_client, version, row=row)

        assert "0 to 45" in page.problem
        assert positions(page) == list(range(20))


def test_a_page_takes_the_same_queries_for_any_filter(
    alice_client, version, django_assert_max_num_queries
):
    # Session, user, memberships, team, dataset, versions, runs of two kinds; then rows
    # to show, their texts, and the count of a filter. The first look starts statistics.
    get_page(alice_client, version)
    for query, number in (({}, 10), ({"q": "what"}, 11), ({"sort": "answer"}, 11)):
        with django_assert_max_num_queries(number):
            get_page(alice_client, version, **query)


def test_extra_columns_keep_the_order_of_the_file(team):
    rows = [Row(prompt="a", columns={"customer": 1, "number": 2, "b": 3, "a": 4})]
    version = store_dataset(
        team, rows, name="Orders", mapping={"columns": ["customer", "number"]}
    )

    row = version.rows.get()

    assert list(row.columns) == ["a", "b", "number", "customer"]
    assert list(row.ordered_columns) == ["customer", "number", "a", "b"]


def test_an_open_row_stays_in_its_view(alice_client, version):
    for query, first, chosen in (
        ({"row": "41"}, 40, 41),
        ({"row": "41", "from": "30"}, 30, 41),
        ({"row": "26", "answer": "no"}, 8, 26),
        ({"row": "44", "sort": "-position"}, 45, 44),
    ):
        page = get_page(alice_client, version, **query)

        assert (positions(page)[0], page.chosen) == (first, chosen), query


def test_a_row_is_opened_alone_for_the_drawer(
    alice_client, version, django_assert_max_num_queries
):
    url = f"/alpha/datasets/{version.dataset_id}/"
    headers = {"hx-request": "true", "hx-target": "row-drawer"}

    # Session, user, membership, dataset, versions, row, models of runs.
    with django_assert_max_num_queries(9):
        answer = alice_client.get(url, {"row": "41"}, headers=headers)

    assert "<html" not in answer.text
    assert answer.context["opened"].position == 41
    assert "page" not in answer.context
    assert alice_client.get(url, {"row": "46"}, headers=headers).status_code == 200


def test_each_chip_leads_to_the_view_without_its_filter(alice_client, version):
    view = {"q": "a", "answer": "yes", "column": "i", "value": "7", "sort": "-answer"}
    url = f"/alpha/datasets/{version.dataset_id}/"

    chips = alice_client.get(url, view).context["form"].chips

    left = [dict(parse_qsl(query, keep_blank_values=True)) for _, query in chips]
    gone = [{*view} - {*query} for query in left]
    assert gone == [{"q"}, {"answer"}, {"column", "value"}, {"sort"}]
