"""What the trainer's process asks of its host before torch is loaded."""

import os
import platform
import sys

import pytest

from tests.environment import run_here

# Memory that was given back and is taken again, and how many pages came again.
PAGES = """
import resource
from trainer.host import keep_large_blocks, settle_in

def fill():
    blocks = [b"x" * ({block_mib} * 2**20) for _ in range(192 // {block_mib})]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    del blocks
    return before

{calls}
fill()
first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(fill() - first)
"""


NUM_PAGES = 192 * 2**20 // 4096


def pages_taken_again(calls: str, *, block_mib: int = 1, **environment: str) -> int:
    done = run_here(
        *(sys.executable, "-c"),
        PAGES.format(calls=calls, block_mib=block_mib),
        env=os.environ | environment,
        check=True,
    )
    return int(done.stdout)


needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc is asked to keep memory"
)


@needs_glibc
def test_freed_pages_are_reused_by_the_next_step():
    assert pages_taken_again("") > NUM_PAGES / 2
    assert pages_taken_again("settle_in()") < NUM_PAGES / 10


@needs_glibc
def test_large_blocks_are_kept_for_a_model_on_a_cpu():
    settled = "settle_in()"

    assert pages_taken_again(settled, block_mib=64) > NUM_PAGES / 2
    assert (
        pages_taken_again(f"{settled}; keep_large_blocks()", block_mib=64)
        < NUM_PAGES / 10
    )


# Each of many threads allocates, and malloc_info lists the arenas.
ARENAS = """
import ctypes, threading
from trainer.host import bound_arenas

{calls}
barrier = threading.Barrier(9)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def allocate():
    libc.malloc(1000)
    barrier.wait()
    barrier.wait()

for _ in range(8):
    threading.Thread(target=allocate).start()
barrier.wait()
libc.fopen.restype = ctypes.c_void_p
out = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, ctypes.c_void_p(out))
libc.fflush(ctypes.c_void_p(out))
barrier.wait()
"""


@needs_glibc
@pytest.mark.parametrize(
    ("calls", "environment", "num_arenas"),
    [
        ("", {}, 9),
        ("bound_arenas()", {}, 2),
        ("bound_arenas()", {"MALLOC_ARENA_MAX": "1"}, 1),
    ],
)
def test_threads_of_a_server_share_two_arenas(calls, environment, num_arenas):
    done = run_here(
        *(sys.executable, "-c"),
        ARENAS.format(calls=calls),
        env=os.environ | environment,
        check=True,
    )

    assert done.stdout.count("<heap nr=") == num_arenas


@needs_glibc
@pytest.mark.parametrize(
    ("block_mib", "setting"),
    [
        (1, {"MALLOC_TRIM_THRESHOLD_": str(2**20)}),
        (64, {"MALLOC_MMAP_THRESHOLD_": str(2**20)}),
        (64, {"MALLOC_MMAP_MAX_": "65536"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_environment_set_by_the_user_stays(block_mib, setting):
    calls = "settle_in(); keep_large_blocks()"

    taken = pages_taken_again(calls, block_mib=block_mib, **setting)

    assert taken > NUM_PAGES / 4
