"""A rollout server's run, and what another's late questions cannot do to it."""

import socket

import pytest
import torch

from trainer.rollout.server import Incomplete, Lease, NotLeased

ONE = {"w": torch.ones(3)}


@pytest.fixture
def lease() -> Lease:
    return Lease(max_bytes=100)


def test_a_server_is_leased_to_one_run_at_a_time(lease):
    word = lease.take(None, word=None)

    assert lease.take(None, word=None) is None
    assert lease.take(None, word="another") is None
    lease.release("another")
    assert lease.take(None, word=None) is None
    lease.release(word)
    assert lease.take(None, word=None) not in (None, word)


def test_a_run_that_reconnects_takes_over_its_lease(lease):
    old = lease.take(None, word=None)
    lease.add_weights(old, ONE)

    new = lease.take(None, word=old)

    lease.release(old)  # the older connection's end is noticed only now
    lease.check(new)
    with pytest.raises(NotLeased):
        lease.check(old)
    with pytest.raises(Incomplete, match=r"1 weights .* 0 arrived"):
        lease.collect_weights(new, ["w"])


@pytest.mark.parametrize("late", [None, "", "the last run's", "ü"])
def test_a_run_that_lost_it_changes_nothing(lease, late):
    word = lease.take(None, word=None)
    lease.add_weights(word, ONE)

    for act in (
        lambda: lease.check(late),
        lambda: lease.add_weights(late, {"w": torch.zeros(3)}),
        lambda: lease.collect_weights(late, ["w"]),
        lambda: lease.next_version(late),
    ):
        with pytest.raises(NotLeased):
            act()

    assert torch.equal(lease.collect_weights(word, ["w"])["w"], ONE["w"])


def test_weights_have_no_version_from_being_collected_until_they_are_loaded(lease):
    word = lease.take(None, word=None)
    versions = []

    for _ in range(2):
        lease.add_weights(word, ONE)
        lease.collect_weights(word, ["w"])
        assert lease.version is None
        versions.append(lease.next_version(word))
        assert lease.version == versions[-1]

    assert versions[0] != versions[1]
    assert lease.take(None, word=word) is not None
    assert lease.version is None


def test_an_incomplete_upload_is_dropped(lease):
    word = lease.take(None, word=None)
    lease.add_weights(word, ONE)

    with pytest.raises(Incomplete, match=r"2 weights .* 1 arrived"):
        lease.collect_weights(word, ["w", "v"])

    with pytest.raises(Incomplete, match="0 arrived"):
        lease.collect_weights(word, ["w"])


def test_no_more_is_kept_than_a_model_has(lease):
    word = lease.take(None, word=None)
    lease.add_weights(word, {"v": torch.zeros(20)})

    with pytest.raises(ValueError, match="104 bytes"):
        lease.add_weights(word, {"w": torch.zeros(6)})
    lease.add_weights(word, {"v": torch.zeros(25)})  # in place of the other


def test_it_is_closed_whether_its_run_is_there_or_not(lease):
    here, there = socket.socketpair()
    lease.take(here, word=None)

    lease.close()

    assert there.recv(1) == b""
    here.close()
    lease.close()
    assert lease.take(None, word=None) is None
    there.close()
