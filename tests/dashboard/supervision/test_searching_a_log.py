from pathlib import Path
from typing import Any

import pytest

from dashboard.project.errors import code_of
from dashboard.supervision import log_search
from dashboard.supervision.log_search import Found, make_pattern, search


def found_in(
    path: Path, query: str, *, regex: bool = False, case: bool = False, first: int = 0
) -> Found:
    pattern = make_pattern(query, is_pattern=regex, ignore_case=not case)
    return search(path, pattern, first=first)


@pytest.fixture(autouse=True)
def _patience(monkeypatch) -> None:
    """Whatever else the machine does meanwhile."""
    monkeypatch.setattr(log_search, "MAX_SECONDS", 60.0)


def numbers(found: Found) -> list[int]:
    return [match.number for match in found.matches]


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "trainer.log"
    lines = ["step 1", "Reward 0.5 (a+b)", "step 2", "saved", "REWARD 0.7", "", "end"]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_a_text_is_found_as_it_is_typed(log):
    assert numbers(found_in(log, "(a+b)")) == [2]
    assert numbers(found_in(log, "reward")) == [2, 5]
    assert numbers(found_in(log, "REWARD", case=True)) == [5]


def test_a_pattern_matches_within_a_line(log):
    assert numbers(found_in(log, r"^step \d$", regex=True)) == [1, 3]
    assert numbers(found_in(log, r"1\s+Reward", regex=True)) == []


def test_a_match_comes_with_its_place_and_the_lines_around(log):
    (match,) = found_in(log, "saved").matches

    assert match.line.text[slice(*match.spans[0])] == "saved"
    assert log.read_bytes()[match.line.at :].startswith(b"saved")
    assert match.before == ["Reward 0.5 (a+b)", "step 2"]
    assert match.after == ["REWARD 0.7", ""]


def test_the_search_uses_the_shown_text(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x\n\x1b[31mout of\x1b[0m memory\nload 1%\rload 99%\n")

    assert numbers(found_in(path, "out of memory")) == [2]
    assert found_in(path, "out of memory").matches[0].line.at == 2
    assert numbers(found_in(path, "1%")) == []
    assert numbers(found_in(path, "99%")) == [3]


def test_places_hold_across_blocks(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(f"line {n} é\n" for n in range(1, 100_001)))

    (match,) = found_in(path, r"^line 99999\b", regex=True).matches

    assert match.number == 99_999
    assert path.read_bytes()[match.line.at :].startswith(b"line 99999 ")


def test_only_a_hundred_are_listed_at_once_and_all_are_counted(tmp_path):
    path = tmp_path / "log"
    path.write_text("hit\n" * 250)

    found = found_in(path, "hit", first=200)

    assert (found.total, len(found.matches)) == (250, 50)
    assert found.matches[0].number == 201


def test_a_search_with_too_many_matches_stops_and_reports_it(tmp_path):
    path = tmp_path / "log"
    path.write_text("hit\n" * 5_000)

    found = found_in(path, "hit")

    assert found.total == 1_001
    assert "1,000" in found.stopped


def test_a_search_that_times_out_reports_it(tmp_path, monkeypatch):
    monkeypatch.setattr(log_search, "MAX_SECONDS", 0.0)
    path = tmp_path / "log"
    path.write_text("x" * 99 + "\n" + "y\n" * 1_000_000)

    found = found_in(path, "z")

    assert "1 MiB" in found.stopped


class Counted:
    """A pattern that says how much it was given at once."""

    def __init__(self, pattern: Any) -> None:
        self._pattern = pattern
        self.programsize = pattern.programsize
        self.most = 0

    def search(self, text: bytes, place: int) -> Any:
        self.most = max(self.most, len(text) - place)
        return self._pattern.search(text, place)

    def finditer(self, text: str) -> Any:
        return self._pattern.finditer(text)


@pytest.mark.parametrize("length", [80, 5_000, 3_000_000])
def test_nothing_is_searched_that_takes_more_than_a_second(tmp_path, length):
    path = tmp_path / "log"
    path.write_text(("abc xyz0123." * length)[:length] + "\n" + "y\n" * 100)

    for query in ("loss", "[a-m]{0,300}.{0,100}!", "[^!]{1,400}!"):
        pattern = Counted(make_pattern(query, is_pattern=True, ignore_case=True))
        search(path, pattern)

        assert 0 < pattern.most * pattern.programsize <= log_search.MAX_WORK, query


def test_a_line_without_end_shifts_no_number(tmp_path):
    path = tmp_path / "log"
    path.write_text("first hit\n" + "x" * 5_000_000 + " hit\nlast hit\n")

    first, last = found_in(path, "hit").matches

    assert (first.number, last.number) == (1, 3)
    assert path.read_bytes()[last.line.at :] == b"last hit\n"


def test_a_pattern_that_cannot_be_searched_is_refused():
    for query, regex, code in (
        ("", False, "logs.empty_query"),
        ("x" * 501, False, "logs.query_too_long"),
        ("(", True, ""),
        ("a*", True, "logs.matches_empty"),
        ("[^!]{0,1000}!", True, "logs.pattern_too_large"),
        (r"\pL{1,8}", True, "logs.pattern_too_large"),
    ):
        with pytest.raises(ValueError) as raised:  # noqa: PT011  # the code is asserted
            make_pattern(query, is_pattern=regex, ignore_case=True)
        assert code_of(raised.value) == code, query


def test_a_quoted_pattern_without_an_end_matches(tmp_path):
    path = tmp_path / "log"
    path.write_text("one\na [b] c\n[d]|one more\n")

    assert numbers(found_in(path, r"] \Qc", regex=True)) == [2]
    assert numbers(found_in(path, r"^one|^\Q[d]", regex=True)) == [1, 3]
