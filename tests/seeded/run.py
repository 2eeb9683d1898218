"""`make seeded`: whether the fast tests find faults of one line.

    python -m tests.seeded.run [ID …]

Each fault is inserted into a copy of the repository, and its tests run there. The exit
code is 1 if a fault survives.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.seeded.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]


def main(ids: Sequence[str]) -> int:
    survived = []
    with tempfile.TemporaryDirectory(prefix="cohort-seeded-") as name:
        copy = copy_of_the_repository(Path(name))
        for fault in FAULTS:
            if ids and fault.id not in ids:
                continue
            start = time.monotonic()
            found = is_found(fault, copy)
            seconds = time.monotonic() - start
            sys.stdout.write(
                f"{fault.id:<4}{'found' if found else 'SURVIVED':<10}"
                f"{seconds:4.0f} s  {fault.file}\n"
            )
            sys.stdout.flush()
            if not found:
                survived.append(fault.id)
    if survived:
        sys.stdout.write(f"Survived: {', '.join(survived)}\n")
    return 1 if survived else 0


def copy_of_the_repository(folder: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607 - the user's git
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((ROOT / name).read_bytes())
    (folder / "node_modules").symlink_to(ROOT / "node_modules")
    return folder


def is_found(fault: Fault, copy: Path) -> bool:
    """True for pytest's exit code 1, a failed test. Other errors are raised."""
    path = copy / fault.file
    original = path.read_text()
    assert original.count(fault.line) == 1, f"{fault.id}: its line must occur once"
    path.write_text(original.replace(fault.line, fault.fault))
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *fault.tests.split()]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    finally:
        path.write_text(original)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{fault.id}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
