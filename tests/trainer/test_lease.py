"""A rollout server's run, and what another's late questions cannot do to it."""

from __future__ import annotations

import socket

import pytest
import torch

from trainer.rollout.lease import Incomplete, Lease, NotLeased

ONE = {"w": torch.ones(3)}


@pytest.fixture
def hold() -> Lease:
    return Lease(max_bytes=100)


def test_one_run_holds_it_at_a_time(hold: Lease) -> None:
    word = hold.take(None, word=None)

    assert hold.take(None, word=None) is None
    assert hold.take(None, word="another") is None
    hold.release("another")
    assert not hold.is_free
    hold.release(word)
    assert hold.is_free
    assert hold.take(None, word=None) not in (None, word)


def test_a_run_that_reconnects_takes_over_its_lease(hold: Lease) -> None:
    old = hold.take(None, word=None)
    hold.add_weights(old, ONE)

    new = hold.take(None, word=old)

    hold.release(old)  # the older connection's end is noticed only now
    hold.check(new)
    with pytest.raises(NotLeased):
        hold.check(old)
    with pytest.raises(Incomplete, match=r"1 weights .* 0 came"):
        hold.collect_weights(new, ["w"])


@pytest.mark.parametrize("late", [None, "", "the last run's", "ü"])
def test_a_run_that_lost_it_changes_nothing(hold: Lease, late: str | None) -> None:
    word = hold.take(None, word=None)
    hold.add_weights(word, ONE)

    for act in (
        lambda: hold.check(late),
        lambda: hold.add_weights(late, {"w": torch.zeros(3)}),
        lambda: hold.collect_weights(late, ["w"]),
        lambda: hold.next_version(late),
    ):
        with pytest.raises(NotLeased):
            act()

    assert torch.equal(hold.collect_weights(word, ["w"])["w"], ONE["w"])


def test_weights_have_no_version_from_being_collected_until_they_are_loaded(
    hold: Lease,
) -> None:
    word = hold.take(None, word=None)
    versions = []

    for _ in range(2):
        hold.add_weights(word, ONE)
        hold.collect_weights(word, ["w"])
        assert hold.version is None
        versions.append(hold.next_version(word))
        assert hold.version == versions[-1]

    assert versions[0] != versions[1]
    assert hold.take(None, word=word) is not None
    assert hold.version is None


def test_what_came_is_dropped_when_it_is_not_what_was_announced(hold: Lease) -> None:
    word = hold.take(None, word=None)
    hold.add_weights(word, ONE)

    with pytest.raises(Incomplete, match=r"2 weights .* 1 came"):
        hold.collect_weights(word, ["w", "v"])

    with pytest.raises(Incomplete, match="and 0 came"):
        hold.collect_weights(word, ["w"])


def test_no_more_is_kept_than_a_model_has(hold: Lease) -> None:
    word = hold.take(None, word=None)
    hold.add_weights(word, {"v": torch.zeros(20)})

    with pytest.raises(ValueError, match="104 bytes"):
        hold.add_weights(word, {"w": torch.zeros(6)})
    hold.add_weights(word, {"v": torch.zeros(25)})  # in place of the other


def test_it_is_closed_whether_its_run_is_there_or_not(hold: Lease) -> None:
    here, there = socket.socketpair()
    hold.take(here, word=None)

    hold.close()

    assert there.recv(1) == b""
    here.close()
    hold.close()
    assert hold.take(None, word=None) is None
    there.close()
