"""Sandboxes of a process: whose they are, how they are lost, and what is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.rewards.test_judge import ROOT, wait_until_gone
from tests.trainer.waiting import wait_until
from trainer.rewards.judge import limited_to
from trainer.rewards.sandbox import pool as module
from trainer.rewards.sandbox.levels import obstacle
from trainer.rewards.sandbox.limits import Limits
from trainer.rewards.sandbox.pool import SandboxFailed, _Pool, sandbox_level
from trainer.rewards.sandbox.slot import SandboxStatus, Slot, SlotLost

WAIT = "import time\ndef reward(completion):\n    time.sleep(completion)\n    return 1"


@pytest.fixture
def pool() -> Iterator[_Pool]:
    sandbox_level()  # found before a test lets sandboxes fail
    pool = _Pool()
    yield pool
    pool.end_all()


def ask(pool: _Pool, owner: str, seconds: float = 0, value: int = 1) -> bytes:
    source = WAIT.replace("return 1", f"return {value}")
    question = {"source": source, "arguments": {"completion": seconds}}
    return pool.ask(owner, "function", [question], Limits()).replies[0]


def slot_of(pool: _Pool, owner: str) -> Slot:
    slot = pool._places[owner].slot
    assert slot is not None
    return slot


def test_each_owner_has_a_sandbox_that_is_used_again(pool):
    ask(pool, "a")
    first = slot_of(pool, "a")
    ask(pool, "a")
    ask(pool, "b")

    assert slot_of(pool, "a") is first
    assert slot_of(pool, "b") is not first
    assert first.num_calls == 2


@pytest.mark.slow
def test_a_team_does_not_wait_for_another(pool):
    ask(pool, "b")
    slow = threading.Thread(target=ask, args=(pool, "a", 4))
    slow.start()

    ask(pool, "b")

    assert slow.is_alive()
    slow.join()


def test_a_caller_that_waits_too_long_gets_busy(pool):
    ask(pool, "a")
    slow = threading.Thread(target=ask, args=(pool, "a", 0.8))
    slow.start()
    wait_until(lambda: pool._places["a"].is_busy)

    with limited_to(0.1), pytest.raises(SandboxFailed, match="is busy"):
        ask(pool, "a")

    slow.join()


def test_a_new_team_gets_the_place_of_an_idle_one(pool, monkeypatch):
    monkeypatch.setattr(module, "MAX_SLOTS", 1)
    ask(pool, "a")

    ask(pool, "b")

    assert list(pool._places) == ["b"]


def test_no_team_keeps_the_only_place(pool, monkeypatch):
    monkeypatch.setattr(module, "MAX_SLOTS", 1)
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.1)
    is_done = threading.Event()

    def go_on() -> None:
        while not is_done.is_set():
            ask(pool, "a")

    greedy = threading.Thread(target=go_on)
    greedy.start()
    time.sleep(0.3)
    try:
        with limited_to(20):
            assert ask(pool, "b") == b'{"value": 1.0}'
    finally:
        is_done.set()
        greedy.join()


def test_a_caller_that_gives_up_does_not_block_others(pool, monkeypatch):
    monkeypatch.setattr(module, "MAX_SLOTS", 1)
    ask(pool, "a")
    slow = threading.Thread(target=ask, args=(pool, "a", 0.5))
    slow.start()
    time.sleep(0.1)
    wait = pool._changed.wait

    def interrupt(_: float) -> bool:
        monkeypatch.setattr(pool._changed, "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool._changed, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(pool, "b")

    with limited_to(10):
        assert ask(pool, "c") == b'{"value": 1.0}'
    slow.join()


def test_a_slot_killed_between_calls_is_replaced(pool):
    ask(pool, "a")
    os.kill(slot_of(pool, "a").pid, signal.SIGKILL)
    time.sleep(0.1)

    assert ask(pool, "a") == b'{"value": 1.0}'


def test_a_worker_killed_in_a_call_is_called_again(pool, monkeypatch):
    # At level A the process is bubblewrap, whose end alone is not the sandbox's.
    if (reason := obstacle("B")) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(
        module, "find_sandbox", lambda **_: SandboxStatus(level="B", reasons={})
    )
    ask(pool, "a")
    slot = slot_of(pool, "a")
    threading.Timer(0.2, os.kill, (slot.pid, signal.SIGKILL)).start()

    assert ask(pool, "a", 0.5) == b'{"value": 1.0}'
    assert slot_of(pool, "a") is not slot


def test_a_worker_lost_twice_is_reported(pool, monkeypatch):
    def lose(*_: Any) -> None:
        raise SlotLost("it is gone")

    monkeypatch.setattr(Slot, "_ask", lose)

    with pytest.raises(SandboxFailed, match="it is gone"):
        ask(pool, "a")


def test_an_interrupted_caller_leaves_no_reply_behind(pool, monkeypatch):
    """It would be the next caller's, who may be of another team."""
    ask(pool, "a")
    receive = Slot._receive

    def interrupt(self: Slot, *args: Any) -> bytes:
        monkeypatch.setattr(Slot, "_receive", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(Slot, "_receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(pool, "a", value=7)

    assert ask(pool, "a", value=1) == b'{"value": 1.0}'


def test_an_answer_to_another_call_is_rejected(pool, monkeypatch):
    ask(pool, "a")
    slot = slot_of(pool, "a")
    monkeypatch.setattr("secrets.token_hex", lambda _: "mine")
    receive = Slot._receive

    def another(self: Slot, *args: Any) -> bytes:
        return receive(self, *args).replace(b'"call": "mine"', b'"call": "other"')

    monkeypatch.setattr(Slot, "_receive", another)
    with pytest.raises(SlotLost, match="another call"):
        slot.ask(
            "function", [{"source": WAIT, "arguments": {"completion": 0}}], Limits()
        )

    assert not slot.is_alive()


def test_with_no_time_left_no_sandbox_is_touched(pool):
    ask(pool, "a")
    slot = slot_of(pool, "a")

    with limited_to(0.03), pytest.raises(SandboxFailed, match="No time"):
        ask(pool, "a")

    assert slot_of(pool, "a") is slot
    assert slot.is_alive()


def test_a_call_gets_no_more_than_what_is_left(pool):
    ask(pool, "a")

    with limited_to(0.5):
        question = {"source": WAIT, "arguments": {"completion": 60}}
        answer = pool.ask("a", "function", [question], Limits(wall_seconds=30))

    assert answer.end == "time"
    assert answer.wall_seconds < 20


def test_a_sandbox_is_replaced_after_many_calls(pool, monkeypatch):
    monkeypatch.setattr(module, "MAX_CALLS", 2)
    ask(pool, "a")
    first = slot_of(pool, "a")
    ask(pool, "a")
    ask(pool, "a")

    assert slot_of(pool, "a") is not first


ASK_AND_WAIT = f"""
import time
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.limits import Limits
question = {{"source": {WAIT!r}, "arguments": {{"completion": 0}}}}
pool.ask("function", [question], Limits())
print(pool._pool._places[""].slot.pid, flush=True)
time.sleep(60)
"""


def test_sandboxes_end_with_the_process_that_asked():
    with subprocess.Popen(
        [sys.executable, "-c", ASK_AND_WAIT],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        caller.kill()

    assert wait_until_gone(pid)
