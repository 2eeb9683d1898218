"""What is said of a disk that is full, and when a run may go on by itself."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from trainer.disk import MEBIBYTE, DiskFull, full_disk, telling_of_a_full_disk

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm/torch_1")


def test_a_disk_without_the_room_names_what_it_needs(tmp_path: Path) -> None:
    needs = shutil.disk_usage(tmp_path).total + MEBIBYTE

    lack = full_disk(tmp_path, needs, purpose="the log", error=FULL)

    assert lack.needs_bytes == needs
    assert f"{tmp_path} has " in str(lack)


def test_where_it_has_the_room_something_else_is_full(tmp_path: Path) -> None:
    """A run that went on by itself would meet the same at once, without an end."""
    with (
        pytest.raises(DiskFull) as caught,
        telling_of_a_full_disk(tmp_path, 1, purpose="the checkpoint being saved"),
    ):
        raise FULL

    assert caught.value.needs_bytes is None
    assert "No space left on device: '/dev/shm/torch_1'" in str(caught.value)
