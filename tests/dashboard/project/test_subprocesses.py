"""A process of its own: what it answers, how it may end, what it may take."""

import os
import textwrap
from pathlib import Path

import pytest

from dashboard.project import subprocesses
from dashboard.project.subprocesses import ChildFailed, call

CHILD = """
from dashboard.project import subprocesses

def answer(count):
    for number in range(count):
        yield number
{then}

subprocesses.MAX_SECONDS = 1
subprocesses.serve(answer)
"""


@pytest.fixture
def child(tmp_path, monkeypatch) -> Path:
    """Where a module `child` may be put."""
    paths = f"{subprocesses.ROOT}{os.pathsep}{tmp_path}"
    bare = {**subprocesses.bare_environment(), "PYTHONPATH": paths}
    monkeypatch.setattr(subprocesses, "bare_environment", lambda: bare)
    return tmp_path / "child.py"


def write(child: Path, then: str = "") -> None:
    child.write_text(CHILD.format(then=textwrap.indent(then, " " * 4)))


def test_it_yields_all_results(child):
    write(child)

    assert list(call("child", 3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("then", "how"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("raise SystemExit(3)", "code 3"),
        ("bytearray(5 * 2**30)", "code 1"),  # more than it may have
        ("while True: pass", "timed out after 60 s"),
    ],
    ids=["abort", "kill", "exit", "memory", "time"],
)
def test_results_before_a_crash_count(child, then, how):
    write(child, then)
    message: list[int] = []

    def listen() -> None:
        for number in call("child", 2):
            message.append(number)  # noqa: PERF402  # extend would lose them

    with pytest.raises(ChildFailed, match=how):
        listen()

    assert message == [0, 1]


def test_a_child_that_reads_no_question_has_broken_off(child):
    child.write_text("raise SystemExit(3)")

    with pytest.raises(ChildFailed, match="code 3"):
        list(call("child", "x" * 10_000_000))


def test_it_ends_when_the_iterator_is_closed(child):
    write(child, "import os, time\nyield os.getpid()\ntime.sleep(600)")
    answers = call("child", 0)
    pid = next(answers)
    assert Path(f"/proc/{pid}").exists()

    answers.close()

    assert not Path(f"/proc/{pid}").exists()


def test_it_knows_no_secret(child, monkeypatch):
    monkeypatch.setenv("COHORT_SECRET_KEY", "hush")
    write(child, "import os\nyield dict(os.environ)")

    assert "hush" not in str(list(call("child", 0)))
