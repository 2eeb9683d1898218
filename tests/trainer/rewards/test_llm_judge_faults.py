"""Whatever happens to an endpoint, a completion has no score rather than a bad one."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from tests.trainer.rewards.judge_server import (
    Judging,
    cut_off,
    dripping,
    hang_up,
    huge,
    send,
    slow,
    status,
    text,
)
from trainer.rewards.judge import limited_to
from trainer.rewards.model_judge import asking
from trainer.rewards.model_judge.client import _wait_seconds
from trainer.rewards.rule import Sample, Unscorable
from trainer.rewards.rules.llm_judge import LlmJudgeParams, score_by_judge
from trainer.rewards.session import Session, current_session, open_session

SCORE = pytest.approx(6 / 9)


def params_of(judging: Judging, **changes: Any) -> LlmJudgeParams:
    return LlmJudgeParams.model_validate(
        {"base_url": judging.url, "model": "m", "timeout_seconds": 5} | changes
    )


def ask(judging: Judging, *completions: str, **changes: Any) -> list[Any]:
    """Scores, and the texts of what is none."""
    samples = [Sample("p", completion) for completion in completions or ("c",)]
    found = score_by_judge(samples, params_of(judging, **changes))
    return [str(each) if isinstance(each, Unscorable) else each for each in found]


@pytest.fixture
def run(judging, tmp_path) -> Iterator[Session]:
    with open_session(tmp_path) as session:
        yield session


@pytest.mark.parametrize(
    "fault",
    [
        status(429), status(500), status(502), status(503), status(529), hang_up,
        cut_off, status(200, b"<html>busy</html>"), status(200, b'{"choices": []}'),
        status(200, b"[" * 100_000), status(200, b'{"choices":[{"message":7}]}'),
        status(429, b'{"error": {"message": "slow down"}}', Retry_After="0.05"),
    ],
)  # fmt: skip
def test_temporary_failures_are_retried(fault, judging):
    judging.faults = [fault, fault]

    assert ask(judging) == [SCORE]

    assert len(judging.asked) == 3
    assert judging.asked[0]["model"] == judging.asked[2]["model"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            status(400, b'{"error": {"message": "no  such\\nmodel"}}'),
            "400: no such model",
        ),
        (status(401), "rejected the key"),
        (status(403, b"secret"), "rejected the key"),
        (status(404, b'{"detail": "Not Found"}'), "404: Not Found"),
        (status(422, b"not json"), "status 422"),
        (huge, "than 2 MiB"),
    ],
)
def test_permanent_failures_are_not_retried(fault, words, judging):
    judging.faults = [fault, fault]

    (found,) = ask(judging)

    assert words in found
    assert len(judging.asked) == 1


def test_the_number_of_tries_is_limited(judging):
    judging.faults = [status(503)] * 3

    (found,) = ask(judging, max_tries=3)

    assert "status 503" in found
    assert len(judging.asked) == 3


def test_an_unreachable_endpoint_gives_no_score(judging):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    judging.url = f"http://127.0.0.1:{port}/v1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COHORT_JUDGE_HOSTS", f"127.0.0.1:{port}")

        (found,) = ask(judging, max_tries=2)

    assert "cannot reach" in found


def test_a_slow_reply_is_waited_for_as_long_as_allowed(judging):
    judging.faults = [slow(60)]
    begin = time.monotonic()

    (found,) = ask(judging, timeout_seconds=0.1, max_tries=1)

    assert "after 0.1 s" in found
    assert time.monotonic() - begin < 30


def test_a_reply_that_drips_is_held_to_the_same_time(judging):
    judging.faults = [dripping(60)]
    begin = time.monotonic()

    (found,) = ask(judging, timeout_seconds=0.2, max_tries=1)

    assert "after 0.2 s" in found
    assert time.monotonic() - begin < 30


def test_retry_after_holds_for_all_that_ask(judging, run):
    times: list[float] = []

    def note(asked: dict[str, Any]) -> str:
        times.append(time.monotonic())
        return "7"

    judging.reply = note
    judging.faults = [status(429, Retry_After="0.4")]
    begin = time.monotonic()
    late: list[Any] = []
    caller = threading.Thread(target=lambda: late.extend(ask(judging, "b")))

    first = threading.Thread(target=lambda: ask(judging, "a"))
    first.start()
    while not judging.asked:
        time.sleep(0.005)
    time.sleep(0.05)
    caller.start()
    first.join()
    caller.join()

    assert late == [SCORE]
    assert min(times) - begin >= 0.4


def test_a_retry_after_of_an_hour_is_not_waited_for(judging):
    judging.faults = [status(429, Retry_After="3600")]

    (found,) = ask(judging)

    assert "status 429" in found
    assert len(judging.asked) == 1


def test_retry_after_may_be_a_date():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)

    assert _wait_seconds({"Retry-After": soon}) == pytest.approx(30, abs=2)
    assert _wait_seconds({"retry-after": "2"}) == 2
    assert _wait_seconds({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    for nonsense in ("", "soon", "-1", "1e9", "٣"):
        assert _wait_seconds({"Retry-After": nonsense}) is None


def test_an_unreachable_endpoint_is_not_retried(judging, run):
    judging.faults = [status(500)] * 100
    ask(judging, *(f"c{n}" for n in range(8)), max_tries=2, max_concurrency=1)
    num_asked = len(judging.asked)

    ask(judging, "d", max_tries=2, max_concurrency=1)
    judging.faults = []
    assert ask(judging, "e", max_tries=2, max_concurrency=1) == [SCORE]
    judging.faults = [status(500)]
    assert ask(judging, "f", max_tries=2, max_concurrency=1) == [SCORE]

    assert num_asked == 16
    assert len(judging.asked) == 16 + 1 + 1 + 2


def test_questions_are_asked_at_the_same_time_but_not_too_many(judging):
    def wait(asked: dict[str, Any]) -> str:
        time.sleep(0.05)
        return "7"

    judging.reply = wait

    found = ask(judging, *"abcdefghijkl", max_concurrency=3)

    assert found == [SCORE] * 12
    assert judging.most_at_once == 3


def test_outcomes_keep_the_order_of_their_completions(judging):
    def grade(asked: dict[str, Any]) -> str:
        user = asked["messages"][1]["content"]
        number = user.split("completion]\n")[1].split("\n")[0]
        time.sleep(0.01 * (5 - int(number)))
        return number

    judging.reply = grade

    found = ask(judging, "1", "4", "2", "3", "1", low=0, high=10)

    assert found == pytest.approx([0.1, 0.4, 0.2, 0.3, 0.1])
    assert len(judging.asked) == 4  # equal questions are one


def test_connections_are_kept_and_a_closed_one_is_replaced(judging, run):
    ask(judging, "a")
    ask(judging, "b")
    assert judging.num_connections == 1

    def close_after(handler: Any) -> None:
        # says that it keeps the connection, and closes it
        send(handler, 200, judging.completion("7"))
        handler.close_connection = True

    judging.faults = [close_after]
    ask(judging, "c")

    assert ask(judging, "d", max_tries=1) == [SCORE]
    assert judging.num_connections == 2


def test_a_page_has_the_time_that_it_has(judging):
    judging.faults = [slow(60)]
    begin = time.monotonic()

    with limited_to(0.1):
        (found,) = ask(judging)
        (later,) = ask(judging, "d")

    # What of it was left when the question was sent, if any.
    assert re.search(r"after 0\.(1|0\d) s", found) or "No time" in found
    assert "No time" in later
    assert time.monotonic() - begin < 30


def test_the_end_of_a_run_ends_what_is_asked(judging, tmp_path):
    judging.faults = [slow(60), status(503, Retry_After="60")]
    found: list[Any] = []
    with open_session(tmp_path):
        caller = threading.Thread(
            target=lambda: found.extend(
                ask(judging, *"abcd", max_concurrency=2, timeout_seconds=60)
            )
        )
        caller.start()
        while len(judging.asked) < 2:
            time.sleep(0.005)
        begin = time.monotonic()

    caller.join()
    assert time.monotonic() - begin < 30
    assert len(found) == 4
    assert all(isinstance(each, str) for each in found)


def test_an_unreadable_reply_gives_no_score_and_one_report(judging, run):
    judging.faults = [text("Great!"), text("I like it")]

    found = ask(judging, "a", "b", max_concurrency=1)

    assert all("cannot be parsed" in each for each in found)
    (warning,) = current_session().take_warnings()
    assert "'Great!'" in warning
    assert current_session().take_warnings() == []


def test_a_cut_reply_gives_no_score(judging):
    judging.finish_reason = "length"

    (found,) = ask(judging, max_tokens=9)

    assert "9 tokens" in found


def test_a_model_that_says_nothing_gives_no_score(judging):
    judging.faults = [status(200, judging.completion(None))]

    (found,) = ask(judging)

    assert "cannot be parsed" in found


def test_the_request_says_what_the_rule_says(judging):
    ask(
        judging,
        temperature=None,
        max_tokens=77,
        token_limit_field="max_completion_tokens",
        system="Mind the commas.",
        read_as="yes_no",
    )

    (asked,) = judging.asked
    assert asked["model"] == "m"
    assert asked["max_completion_tokens"] == 77
    assert "temperature" not in asked
    assert "max_tokens" not in asked
    system = asked["messages"][0]["content"]
    assert system.startswith("Mind the commas.\n\n")
    assert asking.Endpoint.__dataclass_params__.frozen  # it is a key
