import os
import shutil
import socket
from collections import namedtuple
from pathlib import Path

import pytest

from dashboard.local.data_folder import (
    RESERVE_BYTES,
    LocalFault,
    check_folder,
    check_port,
    fault_of,
    keep_reserve,
)

Usage = namedtuple("Usage", "total used free")


def test_a_port_in_use_is_reported_with_a_free_one():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(LocalFault) as fault:
            check_port(port)

    assert f"Port {port} is in use" in str(fault.value)
    assert "COHORT_PORT=" in str(fault.value)


def test_a_free_port_is_left_free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    check_port(port)

    with socket.socket() as ours:
        ours.bind(("127.0.0.1", port))


def test_low_disk_space_is_reported_before_anything_starts(tmp_path, monkeypatch):
    almost_full = Usage(10**12, 10**12 - 5 * 1024**2, 5 * 1024**2)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: almost_full)

    with pytest.raises(LocalFault, match=r"5 MiB.*COHORT_DATA"):
        check_folder(tmp_path)


def test_a_server_starts_again_on_the_space_of_its_reserve(tmp_path, monkeypatch):
    free = [100 * RESERVE_BYTES - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, free[0]))
    reserve = tmp_path / "reserve"
    keep_reserve(tmp_path)
    assert not reserve.exists()

    free[0] += 1
    keep_reserve(tmp_path)
    assert reserve.stat().st_size == RESERVE_BYTES

    free[0] = RESERVE_BYTES
    with pytest.raises(LocalFault):
        check_folder(tmp_path)
    (tmp_path / "postgres").mkdir()
    check_folder(tmp_path)
    keep_reserve(tmp_path)
    assert reserve.stat().st_size == RESERVE_BYTES


def test_a_data_folder_that_is_a_file_is_rejected(tmp_path):
    path = tmp_path / "data"
    path.write_text("")

    with pytest.raises(LocalFault, match=str(path)):
        check_folder(path)


def test_a_fault_comes_with_its_remedy():
    for errno, remedy in ((28, "Free some"), (13, "write access"), (30, "write")):
        error = OSError(errno, os.strerror(errno))

        assert remedy in str(fault_of(error, Path("/data"))), errno
