"""Whose processes a sandbox's are, and whose count for it.

On level A by `mark.slow`, which the fixture gives.
"""

import contextlib
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.trainer.rewards.sandbox.calling import Caller
from tests.trainer.rewards.test_judge import ROOT
from trainer.rewards.sandbox import limits
from trainer.rewards.sandbox.levels import LEVELS, obstacle

AN_ORDINARY_USER = """
import threading, time
from tests.trainer.rewards.sandbox.calling import Caller
for _ in range(100):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
caller = Caller({level!r})
body = '''
import threading, time
threading.stack_size(65536)
for _ in range(10):
    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
return 10
'''
print(caller.call(body).replies)
caller.slot.end()
"""


def an_ordinary_user() -> tuple[str, dict[str, Any]]:
    """A Python that someone who is not root can run, and who that is."""
    if os.geteuid() != 0:
        return sys.executable, {}
    user = {"user": 54_321, "group": 54_321, "extra_groups": []}
    for python in (sys._base_executable, "/usr/bin/python3"):  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", "import json"], **user).returncode == 0:
                return python, user
    pytest.skip("Python lies where root alone may enter")


@pytest.mark.parametrize("level", LEVELS)
def test_other_threads_of_its_user_take_none_of_its_own(level):
    if (reason := obstacle(level)) is not None:
        pytest.skip(f"level {level}: {reason}")
    python, user = an_ordinary_user()

    done = subprocess.run(
        [python, "-B", "-c", AN_ORDINARY_USER.format(level=level)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        **user,
    )

    if level == "A" and "bwrap: " in done.stderr:
        pytest.skip(f"bubblewrap is for root alone here: {done.stderr[-200:]}")
    assert done.stdout == """(b'{"value": 10.0}',)\n""", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_no_two_sandboxes_are_one_user(caller, monkeypatch):
    """Not though the numbers drawn are the same, and until the first has ended."""
    other = Caller(caller.level)
    body = "import os; return os.getuid() - 1_879_048_192"
    taken = int(other.reply(body)["value"])
    drawn = iter([taken, taken, 5, taken])
    monkeypatch.setattr(
        "random.SystemRandom.randrange",
        lambda self, first, end: first + next(drawn),
    )

    third = Caller(caller.level)
    assert int(third.reply(body)["value"]) == 5
    other.slot.end()
    fourth = Caller(caller.level)
    assert int(fourth.reply(body)["value"]) == taken

    for each in (third, fourth):
        each.slot.end()


def test_without_a_free_number_the_user_is_nobody(monkeypatch):
    monkeypatch.setattr(limits, "_is_mapped", lambda number: False)

    assert limits.reserve_uid().number == 65_534
