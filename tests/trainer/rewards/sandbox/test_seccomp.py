"""The filter's program says of every system call what its list says."""

import errno
import struct

import pytest

from trainer.rewards.sandbox.inside import confinement

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
ANY = (1 << 32) + 77  # no argument that an allowed call may have


def run(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """As the kernel runs it: the answer for a call."""
    given = [*arguments, *[ANY] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *given)
    lines = list(struct.iter_unpack("=HBBI", program))
    value, at = 0, 0
    while True:
        code, if_so, if_not, k = lines[at]
        at += 1
        if code == 0x20:
            value = struct.unpack_from("=I", data, k)[0]
        elif code == 0x06:
            return int(k)
        else:
            holds = {0x15: value == k, 0x35: value >= k, 0x25: value > k}[code]
            at += if_so if holds else if_not


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_unlisted_system_calls_are_refused(machine, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    program = confinement.make_template()
    architecture, numbers = confinement._MACHINES[machine]
    special = {numbers[name] for name in confinement._special(1) if name in numbers}

    for number in [*range(1_000), 2**20, 2**30 - 1]:
        answer = run(program, number, architecture)
        listed = number in numbers.values()

        assert (answer == ALLOW) == (listed and number not in special), number
        assert answer == ALLOW or answer & 0xFFFF0000 == 0x00050000, number
    for number in (2**30, 2**30 + 1, 2**31, 2**32 - 1):
        assert run(program, number, architecture) == KILL
    assert run(program, numbers["read"], 0x40000003) == KILL


@pytest.mark.parametrize(
    ("name", "arguments", "is_allowed"),
    [
        ("clone", (0x3D0F00,), True),
        ("clone", (0x11,), False),  # a fork's
        ("clock_gettime", (0,), True),
        ("clock_gettime", (2**32 - 14,), False),  # another process's
        ("sched_getaffinity", (0,), True),
        ("sched_getaffinity", (1,), False),
        ("prlimit64", (0, 7, 0), True),
        ("prlimit64", (0, 7, 4_096), False),  # sets one
        ("prlimit64", (1, 7, 0), False),
        ("tgkill", (50, 50, 6), True),
        ("tgkill", (50, 50, 9), False),
        ("tgkill", (51, 51, 6), False),
        ("socketpair", (1,), True),
        ("socketpair", (2,), False),
        ("sendto", (3, 4_096, 1, 0, 0), True),
        ("sendto", (3, 4_096, 1, 0, 4_096), False),
        ("memfd_create", (4_096, 1), True),
        ("memfd_create", (4_096, 3), False),  # sealable
        ("fcntl", (1, 3), True),
        ("fcntl", (1, 8), False),  # F_SETOWN
        ("ioctl", (1, 0x5421), True),
        ("ioctl", (1, 0x5412), False),  # TIOCSTI
    ],
)
def test_some_system_calls_depend_on_arguments(name, arguments, is_allowed):
    architecture, numbers = confinement._MACHINES["x86_64"]
    program = confinement.own_filter(confinement.make_template(), pid=50)

    answer = run(program, numbers[name], architecture, *arguments)

    assert (answer == ALLOW) == is_allowed
