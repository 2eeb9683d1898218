"""Statistics of a version: requested once, computed by a worker, stored."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.datasets import row_filters
from dashboard.datasets.analysis import results
from dashboard.datasets.analysis.results import make_statistics, make_token_lengths
from dashboard.datasets.models import DatasetVersion, TokenLengths, VersionStatistics
from dashboard.datasets.row import Row
from dashboard.jobs.models import JobState
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.jobs.working import do, do_all, take, waiting

ROWS = [
    *(Row(prompt=f"{i} plus {i} is?", answer=str(2 * i)) for i in range(12)),
    Row(prompt="3 plus 3 is?", answer="7"),
    Row(prompt=[{"role": "user", "content": "4 PLUS 4 is?"}]),
]


@pytest.fixture
def version(team) -> DatasetVersion:
    return store_dataset(team, ROWS)


def url(version: DatasetVersion) -> str:
    return f"/alpha/datasets/{version.dataset_id}/statistics"


def words(answer: Any) -> str:
    """The text of the page."""
    text = re.sub(
        r"<script.*?</script>|<[^>]+>", " ", answer.content.decode(), flags=re.S
    )
    return " ".join(text.split())


def test_a_small_version_is_analysed_at_once(alice_client, version):
    answer = alice_client.get(url(version))

    result = answer.context["result"]
    assert (result["num_rows"], result["missing_answers"]) == (14, 1)
    assert [one.num_more for one in answer.context["duplicates"]] == [0, 1, 1, 0]
    assert answer.context["num_repeats"] == 2
    assert "integer 13" in words(answer)
    assert "&amp;row=12#row-12" in answer.content.decode()
    assert waiting() == []
    figures = answer.context["figures"]
    assert sum(figures["prompt_chars"]["data"][0]["y"]) == 14
    json.dumps(figures, allow_nan=False)


def test_a_version_is_analysed_once(alice_client, version, monkeypatch):
    alice_client.get(url(version))
    monkeypatch.setattr(results, "RowStatistics", None)

    assert "14 rows" in words(alice_client.get(url(version)))
    assert VersionStatistics.objects.count() == 1


def test_a_large_version_is_left_to_a_worker(alice_client, version, monkeypatch):
    monkeypatch.setattr(row_filters, "MAX_ROWS_OF_PAGE", 3)

    page = alice_client.get(url(version))
    alice_client.get(url(version))

    found = VersionStatistics.objects.get()
    assert waiting() == [("dataset.statistics", found.pk)]
    assert "0 of 14" in words(page)
    assert 'hx-trigger="every 2s"' in page.content.decode()

    make_statistics(found.pk)

    page = alice_client.get(url(version))
    assert page.context["result"]["num_rows"] == 14
    assert "hx-trigger" not in page.content.decode()


def test_large_rows_are_left_to_a_worker(alice_client, version, monkeypatch):
    """A thousand rows of 4 MB must not be in the memory of the web process."""
    monkeypatch.setattr(row_filters, "MAX_BYTES_OF_PAGE", 50, raising=False)

    page = alice_client.get(url(version))

    assert "0 of 14" in words(page)
    assert len(waiting()) == 1


def test_the_progress_is_stored(alice_client, version, monkeypatch):
    monkeypatch.setattr(row_filters, "MAX_ROWS_OF_PAGE", 3)
    monkeypatch.setattr(results, "REPORT_ROWS", 5)
    alice_client.get(url(version))

    job = do(take())

    assert (job.done, job.total, job.unit) == (10, 14, "rows")
    found = VersionStatistics.objects.get()
    assert (found.num_looked, found.num_wanted) == (14, 14)


def test_the_page_shows_the_progress_of_the_worker(alice_client, version, monkeypatch):
    monkeypatch.setattr(row_filters, "MAX_ROWS_OF_PAGE", 3)
    alice_client.get(url(version))
    take().held().update(done=7, total=14)

    assert "7 of 14" in words(alice_client.get(url(version)))


def test_a_failed_analysis_is_not_retried_by_the_page(
    alice_client, version, monkeypatch
):
    monkeypatch.setattr(row_filters, "MAX_ROWS_OF_PAGE", 3)
    monkeypatch.setattr(results, "RowStatistics", None)
    alice_client.get(url(version))
    failed = do(take())
    assert failed.state == JobState.FAILED

    assert alice_client.get(url(version)).context["found"].problem == failed.error
    assert waiting() == []


def test_missing_rows_are_reported(alice_client, version):
    version.rows.filter(position=5).delete()

    found = alice_client.get(url(version)).context["found"]

    assert "13 rows" in found.problem
    assert "14" in found.problem


def make_tokenizer(folder: Path) -> str:
    """One whose tokens are words, made without importing transformers."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    folder.mkdir()
    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_tokens_are_counted_by_the_engine(alice_client, version, tmp_path):
    model = make_tokenizer(tmp_path / "model")

    answer = alice_client.post(
        url(version), {"version": 1, "model": model, "limit": 3}, follow=True
    )

    counted = TokenLengths.objects.get()
    assert ("dataset.token_lengths", counted.pk) in waiting()
    assert "0 of 14 rows" in words(answer)

    make_token_lengths(counted.pk)

    counted.refresh_from_db()
    assert counted.problem == ""
    assert counted.result == {"lengths": [[4, 14]], "every": 1}
    for limit, num_longer in ((3, 14), (4, 0)):
        page = alice_client.get(url(version), {"model": model, "limit": limit})
        assert f"{num_longer} of 14 prompts" in words(page)


@pytest.mark.slow
def test_a_model_without_a_tokenizer_is_named(alice_client, version, tmp_path):
    form = {"version": 1, "model": str(tmp_path), "limit": 3}
    alice_client.post(url(version), form)
    counted = TokenLengths.objects.get()

    do_all()

    text = words(alice_client.get(url(version), {"model": str(tmp_path)}))
    assert str(tmp_path) in text
    assert "no tokenizer" in text
    # Asking again may help: the folder may have got one.
    alice_client.post(url(version), form, follow=True)
    assert waiting() == [("dataset.token_lengths", counted.pk)]
    assert TokenLengths.objects.get().problem == ""


def test_token_counts_of_many_rows_are_sampled(alice_client, version, monkeypatch):
    monkeypatch.setattr(results, "MAX_TOKENIZED", 5)
    given: list[str] = []

    def count(model: str, rows: Any) -> dict[int, int]:
        given.extend(str(row.prompt) for row in rows)
        return {4: 3, 9: 2}

    monkeypatch.setattr(results, "count_tokens", count)
    alice_client.post(url(version), {"version": 1, "model": "m", "limit": 8})
    make_token_lengths(TokenLengths.objects.get().pk)

    text = words(alice_client.get(url(version), {"model": "m", "limit": 8}))

    assert given == [str(ROWS[i].prompt) for i in (0, 3, 6, 9, 12)]
    assert "2 of 5 prompts (40%)" in text
    assert "5 of 14 rows" in text
    assert "every 3" in text


def test_a_viewer_is_not_offered_to_count_tokens(bob_client, version):
    page = bob_client.get(url(version), {"model": "m"})

    assert "Count tokens" not in page.content.decode()


def test_an_invalid_model_is_refused(alice_client, version):
    for model in ("", "-v", "a\x00b", "m" * 501):
        answer = alice_client.post(url(version), {"version": 1, "model": model})

        assert answer.status_code == 422
        assert alice_client.get(url(version), {"model": model}).status_code == 200
    assert not TokenLengths.objects.exists()


def test_the_page_takes_a_fixed_number_of_queries(
    alice_client, version, django_assert_max_num_queries
):
    alice_client.get(url(version))

    with django_assert_max_num_queries(10):
        alice_client.get(url(version))


@pytest.fixture
def counted(team) -> DatasetVersion:
    rows = [Row(prompt=f"{number}?", answer="1") for number in range(14)]
    version = store_dataset(team, rows)
    TokenLengths.objects.create(
        version=version,
        model="m",
        num_wanted=14,
        num_looked=14,
        result={"lengths": [[3, 8], [5, 4], [9, 2]], "every": 1},
    )
    return version


def figure(client: Client, counted: DatasetVersion, limit: int) -> Any:
    page = client.get(
        f"/alpha/datasets/{counted.dataset_id}/statistics",
        {"model": "m", "limit": limit},
    )
    assert 'data-figure="tokens"' in page.text
    return page.context["figures"]["tokens"]


def test_each_bar_counts_the_prompts_of_its_length(alice_client, counted):
    (bars,) = figure(alice_client, counted, 4)["data"]

    counts = {x: y for x, y in zip(bars["x"], bars["y"], strict=True) if y}
    assert counts == {3: 8, 5: 4, 9: 2}


def test_the_limit_is_a_line_between_what_fits_and_what_does_not(alice_client, counted):
    for limit, places in ((4, [4.5]), (9, [9.5]), (500, [])):
        shapes = figure(alice_client, counted, limit)["layout"].get("shapes", [])

        assert [shape["x0"] for shape in shapes] == places


def test_the_share_above_the_limit_is_shown(alice_client, counted):
    url = f"/alpha/datasets/{counted.dataset_id}/statistics"

    page = alice_client.get(url, {"model": "m", "limit": 4}).text

    assert "42.9%" in page


def test_a_new_version_names_its_odd_rows(alice_client, team):
    rows = [Row(prompt=f"{i}?", answer=str(i)) for i in range(9)]
    odd = store_dataset(team, [*rows, Row(prompt="9?", answer="nine"), rows[2]])

    page = alice_client.get(f"/alpha/datasets/{odd.dataset_id}/")

    remarks = [(r.text.split()[0], r.row) for r in page.context["remarks"]]
    assert remarks == [("1", 9), ("1", 10)]
    assert "row=9" in page.text
    assert "row=9" in alice_client.get(url(odd)).text


def test_texts_among_texts_are_no_odd_rows(alice_client, team):
    texts = store_dataset(team, [Row(prompt=f"{i}?", answer="no") for i in range(4)])

    page = alice_client.get(f"/alpha/datasets/{texts.dataset_id}/")

    assert page.context["remarks"] == []
