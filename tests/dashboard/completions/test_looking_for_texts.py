"""A text is looked for in order, as long as a page may take, which says how far."""

import re

import numpy as np
import pytest
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from dashboard.completions.search import results, text
from dashboard.completions.search.text import (
    choose_num_bits,
    fold,
    needed_trigrams,
    rows_of,
    sign,
)
from dashboard.runs.models import Run
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_run
from tests.page_client import PageClient

LETTERS = st.sampled_from("aAbBcC ÄäßİıKſ汉字Ωως1.")


@pytest.fixture
def run(team) -> Run:
    run = make_run(team)
    for step in range(1, 9):
        texts_of_step = [f"the sum is {step}", f"the product is {step}"]
        make_group(run, step=step, rewards=(1.2, 0.0), texts=texts_of_step)
    make_blocks(run)
    return run


@pytest.fixture
def no_time(monkeypatch) -> None:
    """Each page looks through four texts."""
    for name in ("TEXT_SECONDS", "BITS_SECONDS", "LEAST_SECONDS"):
        monkeypatch.setattr(results, name, 0.0)
    monkeypatch.setattr(text, "FIRST_BATCH", 4)


def get(client: PageClient, run: Run, query: str = "") -> str:
    return client.read(reverse("completions", args=["alpha", run.pk]) + query)


def steps(html: str) -> list[int]:
    return [int(step) for step in re.findall(r"data-found=\"(\d+)/", html)]


def next_query(html: str) -> str:
    found = re.search(r'rel="next" href="([^"]*)"', html)
    assert found
    return found[1].replace("&amp;", "&")


def test_a_search_that_times_out_shows_its_matches(alice_client, run, no_time):
    html = get(alice_client, run, "?text=the+sum")

    assert steps(html) == [8, 7, 6, 5]
    assert "1–4 of at least 4" in html
    assert "4 of the 8" in html
    assert "steps 5–8" in html


def test_the_next_page_continues_the_search(alice_client, run, no_time):
    first = get(alice_client, run, "?text=the+sum")
    second = get(alice_client, run, next_query(first))

    assert steps(second) == [4, 3, 2, 1]
    assert "5–8 of 8" in second
    assert "steps 1–4" in second
    assert 'rel="next"' not in second
    assert 'href="?text=the+sum"' in second  # back to start


def test_pages_of_a_text_follow_each_other(alice_client, run, monkeypatch):
    monkeypatch.setattr(results, "PAGE_SIZE", 3)

    pages = [get(alice_client, run, "?text=sum&sort=step")]
    pages += [get(alice_client, run, next_query(pages[-1])) for _ in range(1)]
    pages += [get(alice_client, run, next_query(pages[-1]))]

    assert [steps(page) for page in pages] == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert "4–6 of 8" in pages[1]


def test_a_text_without_candidates_is_not_searched(alice_client, run, no_time):
    html = get(alice_client, run, "?text=difference")

    assert "No completions match" in html
    assert "Searched" not in html


def test_a_search_without_matches_in_time_can_be_continued(alice_client, run, no_time):
    html = get(alice_client, run, "?text=%22is+sum%22&match=words")

    assert steps(html) == []
    assert "4 of the 8" in html
    assert 'rel="next"' in html
    assert "No completions match" not in html


def test_a_cancelled_statement_counts_as_a_timeout(
    alice_client, run, monkeypatch, transactional_db
):
    cancelled = "pg_cancel_backend(pg_backend_pid()) AND pg_sleep(0.1) IS NOT NULL"
    monkeypatch.setattr(text, "HAS_TEXT", f"{text.HAS_TEXT} AND {cancelled}")

    html = get(alice_client, run, "?text=the+sum")

    assert "0 of the 8" in html
    assert 'rel="next"' in html


def test_facets_of_a_partial_search_say_what_they_count(alice_client, run, no_time):
    html = get(alice_client, run, "?text=the+sum")

    assert "the 4 matches" in html


def test_texts_of_the_newest_steps_are_found_without_a_block(alice_client, run):
    make_group(run, step=9, rewards=(0.0,), texts=["the sum is nine"])

    assert steps(get(alice_client, run, "?text=the+sum"))[:2] == [9, 8]


@given(st.text(LETTERS, max_size=12), st.text(LETTERS, max_size=4), st.integers(0, 9))
def test_a_text_that_contains_the_query_is_a_candidate(before, needle, extra):
    held = [before + needle.swapcase() + "x" * extra, "something else"]
    num_bits = choose_num_bits(held)

    rows = rows_of(needed_trigrams(needle), num_bits)

    # As PostgreSQL compares: letter by letter, each in lower case.
    if fold(needle.swapcase()) == fold(needle):
        assert (sign(held, num_bits)[rows] & 0b1000_0000).all()


def test_trigrams_rule_other_texts_out():
    held = [f"number {n} is {n * n}" for n in range(1_000)]
    num_bits = choose_num_bits(held)

    rows = rows_of(needed_trigrams("is 994009"), num_bits)

    bits = np.bitwise_and.reduce(sign(held, num_bits)[rows.ravel()])
    may_hold = int(np.bitwise_count(bits).sum())
    assert may_hold <= 8


def test_trigrams_do_not_cross_from_a_text_to_the_next():
    rows = rows_of(needed_trigrams("abcdef"), 256)

    assert not (sign(["abc", "def"], 256)[rows] != 0).all()
