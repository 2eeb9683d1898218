"""A small disk that can be filled."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

MEBIBYTE = 2**20
BALLAST = "ballast"
CROWD = "crowd"


@contextmanager
def small_disk(folder: Path, *, mebibytes: int, inodes: int = 10_000) -> Iterator[Path]:
    """A tmpfs mounted on a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    limits = f"size={mebibytes}m,nr_inodes={inodes}"
    options = ["-o", limits, "tmpfs", str(folder)]
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *options],  # noqa: S607 - found on the path everywhere
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(
            f"Needs root and the right to mount a small disk. Here: {done.stderr}"
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607 - as above


def fill(folder: Path, *, leave: int) -> None:
    """Until `leave` bytes are free, despite other writers."""
    with (folder / BALLAST).open("ab", buffering=0) as file:
        room = max(0, shutil.disk_usage(folder).free - max(leave, 2 * MEBIBYTE))
        os.posix_fallocate(file.fileno(), file.tell(), room)
        file.seek(0, os.SEEK_END)
        with suppress(OSError):
            while shutil.disk_usage(folder).free > leave:
                file.write(bytes(4_096))


def crowd(folder: Path) -> None:
    """Use up all inodes with empty files, so that no folder can be created."""
    (folder / CROWD).mkdir()
    with suppress(OSError):
        for number in count():
            (folder / CROWD / str(number)).touch()


def make_room(folder: Path) -> None:
    (folder / BALLAST).unlink(missing_ok=True)
    shutil.rmtree(folder / CROWD, ignore_errors=True)
