"""The process in which foreign graders run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.rewards.scores import score
from trainer.rewards import judge
from trainer.rewards.judge import JudgeFailed, ask

ROOT = Path(__file__).parents[3]
QUESTION = {"reference": "42", "text": "42", "is_bare": True}
ASK_AND_WAIT = f"""
import time
from trainer.rewards import judge
judge.ask("math_verify", {QUESTION}, timeout_seconds=60)
print(judge._judges["math_verify"].pid, flush=True)
time.sleep(60)
"""


def judge_pid() -> int:
    ask("math_verify", QUESTION, timeout_seconds=60)
    return judge._judges["math_verify"].pid


def is_running(pid: int) -> bool:
    """Its first thread may be gone before the others, which its parent waits for."""
    process = Path(f"/proc/{pid}")
    try:
        is_over = "Z" in (process / "stat").read_text().split()[2]
        return not is_over or len(list((process / "task").iterdir())) > 1
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(pid)


def test_the_same_process_answers_again():
    assert judge_pid() == judge_pid()


def test_a_process_that_died_is_replaced_without_losing_a_score():
    pid = judge_pid()

    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid)

    assert judge_pid() != pid


def test_a_question_that_hangs_is_ended_and_nothing_is_left_of_it():
    pid = judge_pid()
    endless = QUESTION | {"text": "9^{9^{9^{9^{9}}}}"}
    start = time.monotonic()

    try:
        reply = ask("math_verify", endless, timeout_seconds=0.5)
    except JudgeFailed:
        assert wait_until_gone(pid)
    else:
        assert not reply["is_right"]

    assert time.monotonic() - start < 15


def test_it_ends_with_the_process_that_asked():
    with subprocess.Popen(
        [sys.executable, "-c", ASK_AND_WAIT],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        assert is_running(pid)
        caller.kill()

    assert wait_until_gone(pid)


def test_it_is_given_no_secrets(monkeypatch):
    monkeypatch.setenv("COHORT_SECRET_KEY", "a secret")
    with pytest.raises(JudgeFailed):
        ask("math_verify", QUESTION, timeout_seconds=1e-6)

    environment = Path(f"/proc/{judge_pid()}/environ").read_text()

    assert "PYTHONPATH" in environment
    assert "SECRET" not in environment
    assert "DATABASE_URL" not in environment


def test_a_forked_process_starts_its_own():
    parents = judge_pid()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(judge_pid()).encode())
        judge._end_all()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        childs = int(pipe.read())
    os.waitpid(child, 0)

    assert childs != parents
    assert judge_pid() == parents


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A temporary folder in which another person of the machine may write."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    judge._end_all()
    yield tmp_path
    judge._end_all()


def test_a_module_that_lies_in_the_temporary_folder_is_not_run(scratch):
    trace = scratch / "was-run"
    planted = f"open({str(trace)!r}, 'w')\nraise SystemExit\n"
    (scratch / "sympy.py").write_text(planted)
    (scratch / "json.py").write_text(planted)

    scored = score("math_verify", "<answer>$1/2$</answer>", "0.5")

    assert not trace.exists()
    assert scored == 1.0
