"""Who ended a process, by the kernel's counts of a control group of either kind."""

from pathlib import Path

import pytest

from dashboard.supervision import watchdog
from dashboard.supervision.watchdog import MemoryKills, group_files

PID = 7


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Path:
    """/proc and /sys/fs/cgroup of a machine that has counted nothing yet."""
    proc = tmp_path / "proc"
    (proc / str(PID)).mkdir(parents=True)
    (proc / "self").mkdir()
    (proc / "vmstat").write_text("nr_free_pages 12\noom_kill 0\n")
    monkeypatch.setattr(watchdog, "PROC", proc)
    monkeypatch.setattr(watchdog, "MACHINE", proc / "vmstat")
    return tmp_path


def use_v2(machine: Path) -> Path:
    """As in a container, whose group is what is mounted."""
    root = machine / "cgroup"
    group = root / "main"
    group.mkdir(parents=True)
    mount = f"30 23 0:27 /pod {root} rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
    (machine / "proc" / "self" / "mountinfo").write_text(mount)
    (machine / "proc" / str(PID) / "cgroup").write_text("0::/pod/main\n")
    file = group / "memory.events.local"
    file.write_text("low 0\nhigh 0\nmax 3\noom 0\noom_kill 2\noom_group_kill 0\n")
    return file


def use_v1(machine: Path) -> Path:
    root = machine / "memory"
    (root / "jobs").mkdir(parents=True)
    mounts = (
        f"31 23 0:28 / {machine / 'cpu'} rw - cgroup cgroup rw,cpu\n"
        f"32 23 0:29 / {root} rw - cgroup cgroup rw,memory\n"
    )
    (machine / "proc" / "self" / "mountinfo").write_text(mounts)
    groups = "5:cpu:/jobs\n4:memory:/jobs\n0::/\n"
    (machine / "proc" / str(PID) / "cgroup").write_text(groups)
    file = root / "jobs" / "memory.oom_control"
    file.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    return file


@pytest.mark.parametrize("use", [use_v1, use_v2])
def test_a_higher_count_of_the_cgroup_is_detected(machine, use):
    file = use(machine)
    assert group_files(PID) == [file]
    kills = MemoryKills(PID)

    assert not kills.has_risen()
    file.write_text(file.read_text().replace("oom_kill 2", "oom_kill 3"))

    kills.check()
    assert kills.has_risen()


def test_without_a_cgroup_the_machine_counts(machine):
    kills = MemoryKills(PID)
    assert not kills.has_risen()

    (machine / "proc" / "vmstat").write_text("nr_free_pages 12\noom_kill 1\n")

    assert kills.has_risen()


def test_old_kills_belong_to_other_processes(machine, monkeypatch):
    now = 100.0
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now)
    kills = MemoryKills(PID)
    (machine / "proc" / "vmstat").write_text("oom_kill 1\n")

    now = 140.0
    kills.check()

    assert not kills.has_risen()


def test_without_counters_no_kill_is_reported(machine):
    (machine / "proc" / "vmstat").unlink()

    assert not MemoryKills(PID).has_risen()
