"""A process learns why another one ended, though its own main thread is stuck."""

import os
import socket
import subprocess
import sys
import threading

import pytest
from torch.distributed import TCPStore

from trainer.errors import Failure
from trainer.parallel import world as watchdog
from trainer.parallel.world import Member, Watchdog

HERE = Member(socket.gethostname(), os.getpid())
ELSEWHERE = Member("another-host", 1)
BROKEN = Failure("It is broken.", "Traceback …")


@pytest.fixture(autouse=True)
def haste(monkeypatch) -> None:
    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "_PATIENCE_SECONDS", 0.3)


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)


class Ending:
    """In place of the end of the process."""

    def __init__(self) -> None:
        self.reported: list[Failure] = []
        self.is_notified = threading.Event()

    def __call__(self, failure: Failure) -> None:
        self.reported.append(failure)
        self.is_notified.set()


def test_a_stuck_process_is_ended_with_what_another_left(store):
    end, members = Ending(), [HERE, ELSEWHERE]

    with Watchdog(store, members, rank=0).watching(end):
        Watchdog(store.clone(), members, rank=1).report(BROKEN)

        assert end.is_notified.wait(5)

    assert end.reported == [
        Failure(f"Process 1 of 2 failed: {BROKEN.sentence}", BROKEN.details)
    ]


def test_a_process_that_noticed_is_left_to_end(store):
    end, members = Ending(), [HERE, ELSEWHERE]
    own = Watchdog(store, members, rank=0)

    with own.watching(end):
        Watchdog(store.clone(), members, rank=1).report(BROKEN)
        found = own.find()

        assert not end.is_notified.wait(0.6)

    assert found is not None
    assert found.sentence.startswith("Process 1 of 2")


def test_the_first_failure_is_the_one_that_is_reported(store):
    members = [HERE, ELSEWHERE, ELSEWHERE]
    own = Watchdog(store, members, rank=0)

    Watchdog(store.clone(), members, rank=2).report(BROKEN)
    Watchdog(store.clone(), members, rank=1).report(Failure("A consequence."))

    with own.watching(Ending()):
        found = own.find()
    assert found is not None
    assert found.sentence.startswith("Process 2 of 3")


def test_a_process_that_went_without_a_word_is_named(store):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    own = Watchdog(store, [HERE, Member(HERE.host, child.pid)], rank=0)

    with own.watching(Ending()):
        found = own.find()

    assert found is not None
    assert found.sentence.startswith("Process 1 of 2")


def test_nothing_is_found_where_all_are_well(store):
    end = Ending()
    own = Watchdog(store, [HERE, HERE, ELSEWHERE], rank=0)

    with own.watching(end):
        assert own.find() is None

    assert not end.reported


def test_the_first_process_stays_until_the_others_are_notified(store, monkeypatch):
    """The store is gone with it."""
    monkeypatch.setattr(watchdog, "_PATIENCE_SECONDS", 60.0)
    members = [HERE, ELSEWHERE]
    other = Watchdog(store.clone(), members, rank=1)

    with other.watching(Ending()):
        Watchdog(store, members, rank=0).report(BROKEN)

        assert store.add("heard", 0) == 1
        assert other.find() is not None
