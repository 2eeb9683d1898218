import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from trainer.console import (
    MAX_LINE_BYTES,
    JsonLog,
    facts_of,
    note_step,
    open_json_log,
    print_line,
    print_traceback,
)

KNOWN = {"COHORT_REQUEST_ID": "r-1", "COHORT_RUN_ID": "7", "COHORT_RUN_ATTEMPT": "2"}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    loggers = [logging.getLogger("trainer"), logging.getLogger()]
    before = [(one, one.level, one.propagate, one.handlers[:]) for one in loggers]
    yield
    for one, level, propagate, handlers in before:
        one.level, one.propagate, one.handlers = level, propagate, handlers


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def read_lines(end: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in os.read(end, 2**20).split(b"\n")[:-1]]


def test_a_trainer_says_the_same_as_text_and_as_json(pipe, capsys):
    open_json_log({**KNOWN, "COHORT_LOG_FORMAT": "json", "COHORT_LOG_FD": str(pipe[1])})
    note_step(40)
    print_line("step 40/100")
    try:
        raise RuntimeError("CUDA out of memory")
    except RuntimeError as error:
        print_traceback(error)
    logging.getLogger("a.library").warning("a library's word")

    reported, fault, warned = read_lines(pipe[0])
    assert (
        reported | {"request_id": "r-1", "run": 7, "attempt": 2, "step": 40} == reported
    )
    assert (reported["process"], reported["message"]) == ("trainer", "step 40/100")
    assert fault["message"].startswith("RuntimeError: ")
    assert str(fault["exception"]).startswith("Traceback")
    assert warned["message"] == "a library's word"
    printed = capsys.readouterr()
    assert printed.out == "step 40/100\n"
    assert printed.err.count("RuntimeError: CUDA") == 1


def test_without_the_setting_there_is_text_alone(pipe, capsys):
    open_json_log({"COHORT_LOG_FD": str(pipe[1])})
    print_line("step 1/2")

    os.set_blocking(pipe[0], False)
    with pytest.raises(BlockingIOError):
        os.read(pipe[0], 1)
    assert capsys.readouterr().out == "step 1/2\n"


def test_an_unknown_log_format_is_refused():
    with pytest.raises(ValueError, match="'xml'"):
        open_json_log({"COHORT_LOG_FORMAT": "xml"})


@pytest.mark.parametrize("text", ["x" * 9_000, "“" * 9_000, '"\n' * 9_000])
def test_a_line_is_never_longer_than_a_pipe_takes_at_once(pipe, text):
    log = JsonLog(pipe[1], facts_of(KNOWN))
    log.emit(logging.LogRecord("trainer", 40, "x.py", 1, text + "END", (), None))

    written = os.read(pipe[0], 2**20)
    assert len(written) <= MAX_LINE_BYTES
    assert json.loads(written)["message"].endswith("END")


def test_training_does_not_wait_for_who_reads(pipe):
    log = JsonLog(pipe[1], {})
    for _ in range(1_000):  # of 200 bytes into a pipe that holds 64 KiB
        log.emit(logging.LogRecord("trainer", 20, "x.py", 1, "x" * 100, (), None))

    lines = read_lines(pipe[0])
    assert 0 < len(lines) < 1_000


def test_half_a_character_is_printed_as_another():
    command = "from trainer.console import print_line; print_line('a\\ud83d')"
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}

    printed = subprocess.run(
        [sys.executable, "-c", command], env=environment, stdout=subprocess.PIPE
    )

    assert (printed.returncode, printed.stdout) == (0, b"a?\n")
