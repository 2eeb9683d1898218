"""What the trainer's process asks of its host before torch is loaded."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Memory that was given back and is taken again, and how many pages came anew.
PAGES = """
import resource
import numpy as np
from trainer.host import settle_in

def fill():
    blocks = [np.ones(2**17) for _ in range(192)]  # 1 MiB each
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    del blocks
    return before

if {settles}:
    settle_in()
fill()
first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(fill() - first)
"""


def pages_taken_anew(*, settles: bool, **environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PAGES.format(settles=settles)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc is asked to keep memory"
)


@needs_glibc
def test_what_a_step_gives_back_is_there_for_the_next() -> None:
    num_pages = 192 * 2**20 // 4096

    assert pages_taken_anew(settles=False) > num_pages / 2
    assert pages_taken_anew(settles=True) < num_pages / 10


@needs_glibc
def test_what_the_user_has_set_stays() -> None:
    taken = pages_taken_anew(settles=True, MALLOC_TRIM_THRESHOLD_=str(2**20))

    assert taken > 192 * 2**20 // 4096 / 2
