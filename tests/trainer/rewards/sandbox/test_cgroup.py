"""Control groups of sandboxes: where they may be made, and that they go away."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trainer.rewards.sandbox.calling import Caller
from tests.trainer.rewards.test_judge import wait_until_gone
from trainer.rewards.sandbox import limits, slot
from trainer.rewards.sandbox.levels import LEVELS, Level, obstacle
from trainer.rewards.sandbox.limits import MEBIBYTE, NoGroup, _places

MOUNTINFO = """\
30 24 0:26 / /sys rw,nosuid - sysfs sysfs rw
35 30 0:30 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
"""


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    parent_here = limits.parent_here  # which a test may replace
    parent_here.cache_clear()
    yield
    parent_here.cache_clear()


@pytest.mark.parametrize(
    ("root", "path", "own"),
    [
        ("/", "/system.slice/cohort.service", "system.slice/cohort.service"),
        ("/", "/", ""),
        ("/docker/abc", "/docker/abc/main", "main"),
    ],
)
def test_a_process_finds_its_own_group(root, path, own):
    lines = f"1:name=systemd:/\n0::{path}\n"

    mount, found = _places(MOUNTINFO.format(root=root), lines)

    assert str(mount) == "/sys/fs/cgroup"
    assert found == mount / own


@pytest.mark.parametrize("mountinfo", ["", MOUNTINFO.split("\n")[0]])
def test_without_cgroup_v2_no_group_is_made(mountinfo):
    with pytest.raises(NoGroup, match="not mounted"):
        _places(mountinfo, "0::/\n")


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """A service with a subgroup, in which this process is; folders stand for groups."""
    for folder in (
        tmp_path,
        tmp_path / "cohort.service",
        tmp_path / "cohort.service/main",
    ):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory pids\n")
        (folder / "cgroup.subtree_control").write_text("\n")
    own = tmp_path / "cohort.service/main"
    monkeypatch.setattr(limits, "_places", lambda *_: (tmp_path, own))
    return tmp_path


def delegate(monkeypatch: pytest.MonkeyPatch, *delegated: Path) -> None:
    def getxattr(path: Path, name: str) -> bytes:
        if path in delegated and name == "user.delegate":
            return b"1"
        raise OSError(61, "No data available")

    monkeypatch.setattr(os, "getxattr", getxattr)


def test_the_group_above_is_taken_where_it_was_handed_over(tree, monkeypatch):
    service = tree / "cohort.service"
    delegate(monkeypatch, service)

    assert limits.parent_here() == service
    assert (service / "cgroup.subtree_control").read_text() == "+memory +pids"


@pytest.mark.skipif(os.geteuid() != 0, reason="others may take what they own")
def test_a_group_that_only_can_be_written_is_not_ours(tree, monkeypatch):
    """Root can write them all; the machine's own manager keeps them."""
    delegate(monkeypatch)

    with pytest.raises(NoGroup, match="not delegated"):
        limits.parent_here()


def test_a_containers_own_root_is_ours(tree, monkeypatch):
    delegate(monkeypatch)
    monkeypatch.setattr(limits, "_places", lambda *_: (tree, tree))
    (tree / "cgroup.type").write_text("domain\n")

    assert limits.parent_here() == tree


def test_a_group_without_the_controllers_is_named(tree, monkeypatch):
    delegate(monkeypatch, tree / "cohort.service")
    (tree / "cohort.service/cgroup.controllers").write_text("cpu memory\n")

    with pytest.raises(NoGroup, match="pids"):
        limits.parent_here()


def test_its_limits_are_written(tree, monkeypatch):
    delegate(monkeypatch, tree / "cohort.service")

    folder = limits.make_group().folder

    assert int((folder / "memory.max").read_text()) == 1_216 * MEBIBYTE
    assert int((folder / "pids.max").read_text()) == 32
    assert not (folder / "memory.swap.max").exists()


@pytest.fixture
def real_parent(monkeypatch) -> Iterator[Path]:
    """A group of this machine's own cgroup v2, whatever it can limit."""
    try:
        _, own = _places(
            Path("/proc/self/mountinfo").read_text(),
            Path("/proc/self/cgroup").read_text(),
        )
        parent = own / f"cohort-test-{secrets.token_hex(4)}"
        parent.mkdir()
    except (NoGroup, OSError) as reason:
        pytest.skip(f"no group can be made here: {reason}")
    monkeypatch.setattr(limits, "parent_here", lambda: parent)
    monkeypatch.setattr(limits, "_LIMITS", {})
    yield parent
    parent.rmdir()  # nothing may be left in it


@pytest.fixture
def level(request) -> Level:
    if (reason := obstacle(request.param)) is not None:
        pytest.skip(f"level {request.param}: {reason}")
    found: Level = request.param
    return found


def belongs_to(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().split("\n")
    return next(line[3:] for line in lines if line.startswith("0::"))


@pytest.mark.parametrize("level", LEVELS, indirect=True)
def test_all_of_a_sandbox_is_in_its_group_and_ends_with_it(real_parent, level):
    caller = Caller(level)
    group = caller.slot.group
    assert group is not None
    pids = [int(word) for word in (group.folder / "cgroup.procs").read_text().split()]

    assert caller.reply("return 1") == {"value": 1.0}
    assert caller.slot.pid in pids
    assert {Path(belongs_to(pid)).name for pid in pids} == {group.folder.name}

    caller.slot.end()

    assert not group.folder.exists()
    assert all(map(wait_until_gone, pids))


@pytest.mark.parametrize("level", ["B"], indirect=True)
def test_a_sandbox_that_is_not_let_in_runs_without(real_parent, level, monkeypatch):
    monkeypatch.setattr(limits.Group, "cgroup_path", "/nowhere/cgroup.procs")

    caller = Caller(level)

    assert caller.slot.group is None
    assert caller.reply("return 1") == {"value": 1.0}
    caller.slot.end()


def test_groups_of_processes_that_were_killed_are_removed(real_parent):
    left = real_parent / "cohort-sandbox-999999999-abcd"
    left.mkdir()

    limits.make_group().remove()

    assert not left.exists()


@pytest.mark.parametrize("level", ["B"], indirect=True)
def test_a_sandbox_has_no_more_memory_than_its_group(level, monkeypatch):
    """Though each of its processes might have as much."""
    less = limits._LIMITS | {"memory.max": 96 * MEBIBYTE}
    monkeypatch.setattr(limits, "_LIMITS", less)
    try:
        limits.make_group().remove()
    except NoGroup as reason:
        pytest.skip(f"no group that limits memory can be made here: {reason}")
    caller = Caller(level)
    try:
        with pytest.raises(slot.SlotLost, match="out of memory"):
            caller.call("x = bytearray(2**28)\nx[::4096] = b'1' * 2**16", memory_mb=512)
    finally:
        caller.slot.end()


def test_a_slot_that_cannot_start_leaves_no_group(real_parent, monkeypatch):
    def fail(*_: object, **__: object) -> Callable[[], None]:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("subprocess.Popen", fail)

    with pytest.raises(OSError, match="Cannot allocate"):
        slot.Slot("B")

    assert not list(real_parent.glob("cohort-sandbox-*"))
