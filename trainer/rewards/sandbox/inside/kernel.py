"""System calls without a Python function."""

from __future__ import annotations

import ctypes
import os

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


def end_with_parent(signal_number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal_number)


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


def landlock_rules(attributes: bytes) -> int:
    """Return a descriptor of a new, empty set of rules."""
    return call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)


def landlock_allow(rules: int, beneath: bytes) -> None:
    call(_ADD_RULE, rules, _RULE_PATH_BENEATH, beneath, 0)


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
