"""A scratch folder in the memory of one call, for functions that write files.

Python's functions that open, look at and remove a file by its name find it here. It
ends with the process of the call. No wall rests on it: what goes around these functions
is refused by the kernel, as before.
"""

from __future__ import annotations

import builtins
import io
import os
from functools import partial
from typing import Any

# By absolute path; a folder is the name of any that there is.
_stored: dict[str, io.FileIO | str] = {}
_open_real, _stat_real, _mkdir_real, _unlink_real = (
    os.open,
    os.stat,
    os.mkdir,
    os.unlink,
)


def install() -> None:
    """Replace Python's functions, before other modules take them."""
    vars(builtins)["open"] = vars(io)["open"] = partial(io.open, opener=_open)
    removers = dict.fromkeys(("unlink", "remove", "rmdir"), _remove)
    vars(os).update(open=_open, stat=_stat, mkdir=_mkdir, **removers)


def offer() -> None:
    """Have the folder in this call: until then, all names are the machine's."""
    _stored.update({"/": "/", "/tmp": "/"})  # nosec B108 # noqa: S108 - not a real one


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
    stored = _stored.get(name := _absolute(path))
    may_make = flags & os.O_CREAT and os.path.dirname(name) in _stored
    if isinstance(stored, str) or not (stored or may_make):
        return _open_real(path, flags, mode, dir_fd=dir_fd)
    if stored and flags & os.O_EXCL:
        raise FileExistsError(f"File exists: {path}")
    if not stored or flags & os.O_TRUNC:
        _stored[name] = stored = io.FileIO(os.memfd_create("scratch"), "r+")
    stored.seek(0, os.SEEK_END if flags & os.O_APPEND else os.SEEK_SET)
    return os.dup(stored.fileno())


def _stat(path: Any, **options: Any) -> os.stat_result:
    stored = _stored.get(_absolute(path), path)
    real = stored.fileno() if isinstance(stored, io.FileIO) else stored
    return _stat_real(real, **options)


def _mkdir(path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
    if (name := _absolute(path)) in _stored:
        raise FileExistsError(f"File exists: {path}")
    if os.path.dirname(name) in _stored:
        _stored[name] = "/"
    else:
        _mkdir_real(path, mode, dir_fd=dir_fd)


def _remove(path: Any, *, dir_fd: Any = None) -> None:
    """Remove also what is in a folder."""
    inside = f"{_absolute(path)}/"
    names = [name for name in _stored if f"{name}/".startswith(inside)]
    for name in names:
        del _stored[name]
    if not names:
        _unlink_real(path, dir_fd=dir_fd)


def _absolute(path: Any) -> str:
    is_name = path and not isinstance(path, int)
    return os.path.abspath(os.fsdecode(path)) if is_name else "?"
