"""What the child of one call takes away from itself before it runs anything of ours.

System calls (seccomp): a list of allowed ones, as a BPF program. What is left out
matters most: no new process (so nothing outlives a call, and a fork bomb is one
process), no program started, no socket but a pair, no file written but in memory, no
signal to others, no look at others' clocks, limits or affinity. Threads may be started.

Files (Landlock): the standard library and shared libraries, to read. Resource limits:
memory, time, descriptors, threads, sizes of files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

# System calls without a Python function

_libc = ctypes.CDLL(None, use_errno=True)
_own = ctypes.PyDLL(None, use_errno=True)  # which keeps the interpreter's lock
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_VERSION = 1


def call(number: int, *arguments: object) -> int:
    """Return a system call that every architecture numbers alike; OSError when it
    fails.
    """
    result: int = _libc.syscall(number, *arguments)
    return _checked(result)


def fork() -> int:
    """Fork as os.fork in a process that has had no thread but this one.

    Without what modules do in each child then: new locks in place of ones that another
    thread may hold, a new random seed. That takes a third of a call's time, mostly to
    copy the pages that it writes to.
    """
    pid: int = _own.fork()
    return _checked(pid)


def hide_memory() -> None:
    """Keep others of the same user from looking into this process."""
    _prctl(_PR_SET_DUMPABLE, 0)


def gain_nothing() -> None:
    """Keep set-uid programs from giving rights from here on."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def filter_calls(code: bytes) -> None:
    """Have the kernel ask this BPF program before each system call, for good."""
    program = _Program(len(code) // 8, code)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def landlock_version() -> int:
    """Return 0: this kernel has no Landlock, or it is switched off."""
    try:
        return call(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    except OSError:
        return 0


def landlock_apply(rules: int) -> None:
    call(_RESTRICT_SELF, rules, 0)


_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def _prctl(option: int, value: int, more: int = 0) -> None:
    _checked(_libc.prctl(option, value, more, 0, 0))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


# System calls that are allowed

_X86_64: dict[str, int] = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6,
    "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16,
    "pread64": 17, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34,
    "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39,
    "sendto": 44, "recvfrom": 45, "socketpair": 53, "clone": 56, "exit": 60,
    "fcntl": 72, "getcwd": 79, "gettimeofday": 96, "getrusage": 98, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "sigaltstack": 131,
    "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204,
    "getdents64": 217, "restart_syscall": 219, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232,
    "epoll_ctl": 233, "tgkill": 234, "openat": 257, "newfstatat": 262,
    "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "epoll_pwait": 281,
    "eventfd2": 290, "epoll_create1": 291, "dup3": 292, "pipe2": 293, "prlimit64": 302,
    "getcpu": 309, "getrandom": 318, "memfd_create": 319, "rseq": 334, "clone3": 435,
    "close_range": 436,
}  # fmt: skip
_AARCH64: dict[str, int] = {
    "getcwd": 17, "eventfd2": 19, "epoll_create1": 20, "epoll_ctl": 21,
    "epoll_pwait": 22, "dup": 23, "dup3": 24, "fcntl": 25, "ioctl": 29, "openat": 56,
    "close": 57, "pipe2": 59, "getdents64": 61, "lseek": 62, "read": 63, "write": 64,
    "readv": 65, "writev": 66, "pread64": 67, "pselect6": 72, "ppoll": 73,
    "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98,
    "set_robust_list": 99, "nanosleep": 101, "getitimer": 102, "setitimer": 103,
    "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
    "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "tgkill": 131,
    "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139,
    "times": 153, "getrusage": 165, "getcpu": 168, "gettimeofday": 169, "getpid": 172,
    "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178,
    "socketpair": 199, "sendto": 206, "recvfrom": 207, "brk": 214, "munmap": 215,
    "mremap": 216, "clone": 220, "mmap": 222, "mprotect": 226, "madvise": 233,
    "prlimit64": 261, "getrandom": 278, "memfd_create": 279, "rseq": 293, "clone3": 435,
    "close_range": 436,
}  # fmt: skip
# As the kernel's audit calls them, with the numbers of their calls.
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _AARCH64),
}
_X32 = 0x40000000  # x86-64 calls with 32-bit pointers have numbers from here on

_LOAD, _JUMP_EQUAL, _JUMP_FROM, _JUMP_ABOVE, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x06
_KILL, _ALLOW, _ERROR = 0x80000000, 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# What glibc and musl start a thread with; a new process has none of these.
_THREADS = (0x3D0F00, 0x7D0F00)
# Negative ones, as unsigned numbers, are the clocks of other processes and threads.
_LAST_CLOCK = 11
# Duplicate, and the flags of a descriptor; not its owner, who is sent signals.
_DESCRIPTOR_COMMANDS = (0, 1, 2, 3, 4, 1030)
_DESCRIPTOR_CONTROLS = (0x5421, 0x5450, 0x5451)  # non-blocking, kept or not by exec
_AF_UNIX = 1
_MFD_CLOEXEC = 1
_SIGKILL = 9
_ANY_PID = 0x7FFFFFF1  # more than there ever are, and no other number of the program

_Line = tuple[int, int, int, int]


def is_known_machine() -> bool:
    return platform.machine() in _MACHINES


def own_filter(template: bytes, *, pid: int) -> bytes:
    """Seccomp's program for a process of this number, which may signal itself alone."""
    return template.replace(struct.pack("=I", _ANY_PID), struct.pack("=I", pid))


def make_template() -> bytes:
    """Seccomp's program with a place for the number of its process.

    Made once, since it takes longer to put together than most of a call.
    """
    architecture, numbers = _MACHINES[platform.machine()]
    lines: list[_Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_FROM, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
        *_search(_leaves(numbers, _special(_ANY_PID))),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _leaves(
    numbers: dict[str, int], special: dict[str, list[_Line]]
) -> list[tuple[int, list[_Line]]]:
    """Return what is done from each number on, up to the next one's, in order."""
    allow: list[_Line] = [(_RETURN, 0, 0, _ALLOW)]
    refuse = [_refuse(errno.EPERM)]
    done = {number: special.get(name, allow) for name, number in numbers.items()}
    leaves = [(0, done.get(0, refuse))]
    for number in range(1, max(done) + 2):
        block = done.get(number, refuse)
        if block != leaves[-1][1]:
            leaves.append((number, block))
    return leaves


def _search(leaves: list[tuple[int, list[_Line]]]) -> list[_Line]:
    """Return the leaf that a number belongs to, found by halves.

    The kernel runs the program for every number there is, each time that it takes it
    over: one number after the other, that is an eighth of a call.
    """
    if len(leaves) == 1:
        return leaves[0][1]
    middle = len(leaves) // 2
    below, above = _search(leaves[:middle]), _search(leaves[middle:])
    assert len(below) < 256, "a jump is that far at most"
    return [(_JUMP_FROM, len(below), 0, leaves[middle][0]), *below, *above]


def _special(pid: int) -> dict[str, list[_Line]]:
    """Calls that depend on their arguments; each block ends in an answer."""
    clocks = [
        *_low(0),
        (_JUMP_ABOVE, 1, 0, _LAST_CLOCK),
        (_RETURN, 0, 0, _ALLOW),
        _refuse(errno.EINVAL),
    ]
    return {
        # glibc then starts its threads by clone, whose arguments can be seen.
        "clone3": [_refuse(errno.ENOSYS)],
        "clone": _one_of(0, _THREADS),
        "clock_gettime": clocks,
        "clock_getres": clocks,
        "clock_nanosleep": clocks,
        "sched_getaffinity": _zero(0),
        "prlimit64": [*_zero(0)[:-1], *_zero(2)],
        "fcntl": _one_of(1, _DESCRIPTOR_COMMANDS),
        "ioctl": _one_of(1, _DESCRIPTOR_CONTROLS, otherwise=errno.ENOTTY),
        "socketpair": _one_of(0, (_AF_UNIX,)),
        "sendto": _zero(4),  # to the other end, never to an address
        "memfd_create": _one_of(1, (_MFD_CLOEXEC,)),
        "tgkill": [
            *_low(2),
            (_JUMP_EQUAL, 0, 1, _SIGKILL),
            _refuse(errno.EPERM),
            *_one_of(0, (pid,)),
        ],
    }


def _low(argument: int) -> list[_Line]:
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument)]


def _zero(argument: int) -> list[_Line]:
    """Allow when both halves of it are 0."""
    place = _ARGUMENTS + 8 * argument
    return [
        (_LOAD, 0, 0, place),
        (_JUMP_EQUAL, 1, 0, 0),
        _refuse(errno.EPERM),
        (_LOAD, 0, 0, place + 4),
        (_JUMP_EQUAL, 1, 0, 0),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _one_of(
    argument: int, values: Sequence[int], *, otherwise: int = errno.EPERM
) -> list[_Line]:
    lines = _low(argument)
    for value in values:
        lines += [(_JUMP_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*lines, _refuse(otherwise)]


def _refuse(number: int) -> _Line:
    return (_RETURN, 0, 0, _ERROR | number)


# Files

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
# How many rights to files each version of Landlock knows, one bit each.
_NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_ALL_RIGHTS = 16
_ALL_PORTS = 0b11  # bind, connect
_ALL_SCOPES = 0b11  # abstract sockets, signals


def make_rules(readable: Iterable[str], *, version: int) -> int:
    """Return a descriptor of Landlock's rules.

    Nothing may be opened, written or made but these read. Paths that are not there are
    left out; /dev/null may be written, too.
    """
    attributes = struct.pack("=Q", (1 << _NUM_RIGHTS.get(version, _ALL_RIGHTS)) - 1)
    if version >= 4:
        attributes += struct.pack("=Q", _ALL_PORTS)
    if version >= 6:
        attributes += struct.pack("=Q", _ALL_SCOPES)
    rules = call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    for path in readable:
        _allow(rules, path, _READ_FILE)
    _allow(rules, "/dev/null", _READ_FILE | _WRITE_FILE)
    return rules


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if stat.S_ISDIR(os.fstat(beneath).st_mode):
            rights |= _READ_DIR
        call(
            _ADD_RULE, rules, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, beneath), 0
        )
    finally:
        os.close(beneath)


def may_be_read_by_all(path: str) -> bool:
    """Return whether any user may open a file: it, and each folder above it."""
    if not os.stat(path).st_mode & stat.S_IROTH:
        return False
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
    return True


# Limits, and all of them together

MAX_THREADS = 16
MAX_DESCRIPTORS = 64
MAX_FILE_BYTES = 1024**2  # in memory (see `scratch`), one to each descriptor
QUESTIONS, REPLIES = 3, 4  # the child's descriptors beside the usual three
# Of another user's processes that begin while a call runs, where the uid is not ours.
_HEADROOM = 64
_FOR_ALL = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
    resource.RLIMIT_MEMLOCK: 0,
    resource.RLIMIT_MSGQUEUE: 0,
}
# What the machine allows of each, asked once: a call would spend a tenth of it on that.
_HARD = dict.fromkeys(
    (*_FOR_ALL, resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_NPROC), 0
)


class Walls(NamedTuple):
    """Landlock's rules, as a descriptor, and seccomp's program."""

    files: int | None
    calls: bytes


def confine(
    limits: Mapping[str, int], walls: Walls, *, parent: int, num_others: int
) -> None:
    """Limits, then files, then system calls; OSError when one cannot be set."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before that was set
    _limit(resource.RLIMIT_NOFILE, MAX_DESCRIPTORS)
    _limit(resource.RLIMIT_AS, limits["memory_bytes"])
    # The first signal may be ignored, the second one a second later may not.
    seconds = limits["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    _limit(resource.RLIMIT_NPROC, MAX_THREADS + 2 + num_others)
    if walls.files is not None:
        landlock_apply(walls.files)
        os.close(walls.files)
    filter_calls(own_filter(walls.calls, pid=os.getpid()))


def confine_zygote() -> None:
    """Set the limits that it can have as well as each of its children."""
    for kind in _HARD:
        _HARD[kind] = resource.getrlimit(kind)[1]
    for kind, value in _FOR_ALL.items():
        _limit(kind, value)


def _limit(kind: int, value: int) -> None:
    """Never more than the machine allows already."""
    hard = _HARD[kind]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def count_others(uid: int) -> int:
    """Threads of a user's processes, and room for those that begin meanwhile."""
    count = _HEADROOM
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += os.stat(f"/proc/{name}/task").st_nlink - 2
            except OSError:
                continue  # it has ended
    return count
