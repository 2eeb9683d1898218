"""A run asks nothing twice, whatever becomes of it, and no more than it may."""

import errno
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.rewards.judge_server import status, text
from tests.trainer.rewards.test_llm_judge_faults import SCORE, ask
from trainer.rewards.model_judge.client import Reply
from trainer.rewards.model_judge.ledger import Ledger
from trainer.rewards.session import current_session, open_session

ONE = {"max_concurrency": 1, "max_tries": 1}


def question(number: int) -> bytes:
    return number.to_bytes(32)


def find(ledger: Ledger, digest: bytes) -> Reply | None:
    return ledger.find(digest, is_readable=lambda reply: True)


def add_reply(ledger: Ledger, number: int) -> None:
    assert ledger.take_call("x", max_calls=9, max_tokens=100)
    ledger.add("x", question(number), Reply(f"é {number}", 1, False))


def test_a_resumed_run_asks_nothing_twice(judging, tmp_path):
    with open_session(tmp_path):
        before = ask(judging, "a", "b")
    with open_session(tmp_path):
        after = ask(judging, "a", "b", "c")

    assert after == [*before, SCORE]
    assert len(judging.asked) == 3


def test_attempts_share_their_replies(judging, tmp_path):
    limits = {"budget_calls": 3, **ONE}
    with open_session(tmp_path / "9", attempts=tmp_path):
        before = ask(judging, "a", "b", **limits)
    zombie = Ledger(tmp_path / "9")
    with open_session(tmp_path / "10", attempts=tmp_path):
        after = ask(judging, "a", "b", "c", "d", **limits)
    zombie.close()

    assert after[:3] == [*before, SCORE]
    assert "used up" in after[3]
    assert len(judging.asked) == 3
    kept = [path.read_text().count("\n") for path in tmp_path.glob("*/judges/*")]
    assert sorted(kept) == [1, 2]


def test_an_attempt_repeats_requests_without_a_usable_reply(judging, tmp_path):
    judging.faults = [text("I am not what you take me for.")]
    with open_session(tmp_path / "1", attempts=tmp_path):
        first = [ask(judging, "a", **ONE) for _ in range(2)]
    with open_session(tmp_path / "2", attempts=tmp_path):
        second = ask(judging, "a", **ONE)
    with open_session(tmp_path / "10", attempts=tmp_path):
        third = ask(judging, "a", "b", budget_calls=2, **ONE)

    assert all("cannot be parsed" in found for (found,) in first)
    assert second == [SCORE]
    assert third[0] == SCORE
    assert "used up" in third[1]  # failed calls count too
    assert len(judging.asked) == 2


def test_an_attempt_does_not_repeat_requests_with_truncated_replies(judging, tmp_path):
    judging.finish_reason = "length"
    found = []
    for attempt in ("1", "2"):
        with open_session(tmp_path / attempt, attempts=tmp_path):
            found += ask(judging, "a", **ONE)

    assert all("truncated at" in each for each in found)
    assert len(judging.asked) == 1


def test_the_newest_reply_is_that_of_the_newest_attempt(tmp_path):
    """Whatever the numbers of attempts and processes are written as."""
    for attempt, rank, reported in (
        (3, 0, "third"),
        (2, 10, "second"),
        (10, 1, "tenth"),
    ):
        ledger = Ledger(tmp_path / str(attempt), rank=rank)
        assert ledger.take_call("x", max_calls=9, max_tokens=100)
        ledger.add("x", question(1), Reply(reported, 1, is_cut=False))
        ledger.close()

    newest = Ledger(tmp_path / "11", attempts=tmp_path)

    assert find(newest, question(1)) == Reply("tenth", 1, is_cut=False)
    newest.close()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"temperature": 1.0},
        {"max_tokens": 9},
        {"template": "Is {completion} good?"},
        {"system": "Be kind."},
        {"read_as": "yes_no"},
        {"high": 100},
    ],
)
def test_another_question_is_asked(change, judging, tmp_path):
    with open_session(tmp_path):
        ask(judging, "a")
        ask(judging, "a", **change)

    assert len(judging.asked) == 2


def test_how_it_is_asked_makes_no_other_question(judging, tmp_path):
    with open_session(tmp_path):
        ask(judging, "a")
        ask(judging, "a", max_tries=9, max_concurrency=2, budget_calls=7)

    assert len(judging.asked) == 1


def test_a_run_stops_asking_when_its_calls_are_spent(judging, tmp_path):
    with open_session(tmp_path):
        found = ask(judging, "a", "b", "c", budget_calls=2, **ONE)
        known = ask(judging, "a", budget_calls=2, **ONE)
        warnings = current_session().take_warnings()

    assert found[:2] == [SCORE, SCORE]
    assert "2 calls" in found[2]
    assert known == [SCORE]
    assert warnings == [found[2]]
    assert len(judging.asked) == 2


def test_failed_calls_count_as_spent_after_a_resume(judging, tmp_path):
    judging.faults = [status(400), status(500)]
    with open_session(tmp_path):
        ask(judging, "a", "b", budget_calls=3, **ONE)
    with open_session(tmp_path):
        first = ask(judging, "c", budget_calls=3, **ONE)
        second = ask(judging, "d", budget_calls=3, **ONE)

    assert first == [SCORE]
    assert "used up" in second[0]


def test_tokens_are_counted_as_the_endpoint_tells(judging, tmp_path):
    judging.tokens = 60
    with open_session(tmp_path):
        found = ask(judging, "a", "b", "c", budget_tokens=100, **ONE)

    assert found[:2] == [SCORE, SCORE]
    assert "100 tokens" in found[2]


def test_tokens_that_are_not_reported_are_estimated(judging, tmp_path):
    judging.tokens = None
    with open_session(tmp_path):
        found = ask(judging, "a" * 4_000, "b", budget_tokens=1_000, **ONE)

    assert found[0] == SCORE
    assert "used up" in found[1]


def test_another_rule_of_the_same_model_spends_of_the_same_budget(judging, tmp_path):
    with open_session(tmp_path):
        ask(judging, "a", budget_calls=1, **ONE)
        other = ask(judging, "a", system="Be kind.", budget_calls=1, **ONE)
        another = ask(judging, "a", model="n", budget_calls=1, **ONE)

    assert "used up" in other[0]
    assert another == [SCORE]


def test_processes_share_what_is_left(tmp_path):
    first = Ledger(tmp_path, num_processes=1)
    assert first.take_call("x", max_calls=9, max_tokens=100)
    first.add("x", question(1), Reply("7", 10, False))
    first.close()

    ranks = [Ledger(tmp_path, rank=rank, num_processes=2) for rank in range(2)]
    taken = [
        sum(ledger.take_call("x", max_calls=9, max_tokens=100) for _ in range(9))
        for ledger in ranks
    ]

    assert taken == [4, 4]
    assert all(find(ledger, question(1)) == Reply("7", 10, False) for ledger in ranks)
    for ledger in ranks:
        ledger.close()


def test_a_line_cut_by_a_crash_costs_that_reply_alone(tmp_path):
    ledger = Ledger(tmp_path)
    for number in (1, 2):
        add_reply(ledger, number)
    ledger.close()
    (path,) = (tmp_path / "judges").iterdir()
    path.write_bytes(path.read_bytes()[:-9])

    again = Ledger(tmp_path)
    again.take_call("x", max_calls=9, max_tokens=100)
    again.add("x", question(3), Reply("3", 1, True))
    again.close()

    last = Ledger(tmp_path)
    found = [find(last, question(number)) for number in (1, 2, 3)]
    last.close()
    assert found == [Reply("é 1", 1, False), None, Reply("3", 1, True)]


class SmallDisk(FileIO):
    room = 0

    def write(self, data: Any) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        num_bytes = min(self.room, len(data))
        self.room -= num_bytes
        return super().write(data[:num_bytes])


@pytest.mark.parametrize("room", [0, 30])
def test_replies_lost_to_a_full_disk_are_written_later(room, tmp_path):
    ledger, disk = ledger_on_a_small_disk(tmp_path, room=room)
    add_reply(ledger, 1)
    found = find(ledger, question(1))
    disk.room = 10_000
    add_reply(ledger, 2)
    ledger.close()

    again = Ledger(tmp_path)
    assert found == find(again, question(1)) == Reply("é 1", 1, False)
    assert find(ledger, question(2)) == find(again, question(2)) is not None
    again.close()


def test_closing_the_ledger_on_a_full_disk_does_not_fail(tmp_path):
    ledger, disk = ledger_on_a_small_disk(tmp_path, room=150)
    for number in (1, 2):
        add_reply(ledger, number)
    ledger.close()

    assert disk.closed
    again = Ledger(tmp_path)
    assert find(again, question(1)) == Reply("é 1", 1, False)
    assert find(again, question(2)) is None
    again.close()


def ledger_on_a_small_disk(folder: Path, *, room: int) -> tuple[Ledger, SmallDisk]:
    ledger = Ledger(folder)
    assert ledger._file is not None
    ledger._file.close()
    (path,) = (folder / "judges").iterdir()
    ledger._file = disk = SmallDisk(path, "ab+")
    disk.room = room
    return ledger, disk


def test_without_a_run_replies_are_known_for_a_while(judging):
    ask(judging, "a")
    ask(judging, "a")

    assert len(judging.asked) == 1


def test_the_tokens_of_question_and_reply_are_kept(tmp_path):
    ledger = Ledger(tmp_path)
    assert ledger.take_call("x", max_calls=9, max_tokens=100)
    ledger.add("x", question(1), Reply("7", 30, False, 25, 5))
    ledger.close()

    again = Ledger(tmp_path)
    found = find(again, question(1))
    again.close()

    assert (found.num_tokens_in, found.num_tokens_out) == (25, 5)
