"""Which files a call may open: the standard library and shared libraries, to read."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from trainer.rewards.sandbox.inside import kernel

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
# How many rights to files each version of Landlock knows, one bit each.
_NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_ALL_RIGHTS = 16
_ALL_PORTS = 0b11  # bind, connect
_ALL_SCOPES = 0b11  # abstract sockets, signals


def make_rules(readable: Iterable[str], *, version: int) -> int:
    """A descriptor of rules: nothing may be opened, written or made but these read.

    Paths that are not there are left out; /dev/null may be written, too.
    """
    rights = (1 << _NUM_RIGHTS.get(version, _ALL_RIGHTS)) - 1
    attributes = struct.pack("=Q", rights)
    if version >= 4:
        attributes += struct.pack("=Q", _ALL_PORTS)
    if version >= 6:
        attributes += struct.pack("=Q", _ALL_SCOPES)
    rules = kernel.landlock_rules(attributes)
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
        kernel.landlock_allow(rules, struct.pack("=Qi", rights, beneath))
    finally:
        os.close(beneath)
