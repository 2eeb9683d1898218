"""The two ways to start a sandbox, and their requirements.

A: bubblewrap, with its own files, processes, network and names, and level B inside.
B: the kernel's filters alone: Landlock for files, seccomp for system calls.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import stat
import sys
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from trainer.rewards.sandbox.inside import confinement
from trainer.rewards.sandbox.limits import NOBODY

Level = Literal["A", "B"]
LEVELS: tuple[Level, ...] = get_args(Level)
NAMES: dict[Level, str] = {"A": "bubblewrap", "B": "Landlock and seccomp"}
_FOLDER = Path(__file__).parent
_LIBRARIES = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/local/lib")
# What published reward functions import beside the standard library, with what those
# import in turn, and the distributions that they come from. All of it only computes.
_PACKAGES = {
    "antlr4": "antlr4-python3-runtime",
    "latex2sympy2_extended": "latex2sympy2-extended",
    "math_verify": "math-verify",
    "mpmath": "mpmath",
    "numpy": "numpy",
    "regex": "regex",
    "sympy": "sympy",
}
_DATA = ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom", "/dev/zero")


def obstacle(level: Level) -> str | None:
    """Return why a level cannot even be tried here; None: it can."""
    if sys.platform != "linux":
        return f"it requires Linux; this is {platform.system()}"
    if not confinement.is_known_machine():
        return f"it requires x86_64 or aarch64; this is {platform.machine()}"
    if level == "A" and bubblewrap() is None:
        return "the program bwrap (package bubblewrap) is not installed"
    if level == "B" and not confinement.landlock_version():
        return "the kernel does not have Landlock enabled (Linux 5.13 or newer)"
    return None


def bubblewrap() -> str | None:
    return shutil.which("bwrap", path=f"{os.defpath}:/usr/bin:/usr/local/bin")


class Package(NamedTuple):
    folder: str
    distribution: str
    version: str


@lru_cache(maxsize=4)
def packages_here(level: Level) -> dict[str, Package]:
    """Return the packages that a function may import at a level, by name.

    Those that are installed, and that the user may read whom a sandbox becomes where
    root starts it: at level A they are mounted at a path of their own, at level B every
    folder above them must be open to all.
    """
    packages = {}
    for name, distribution in _PACKAGES.items():
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.has_location or spec.origin is None:
            continue
        path = os.path.realpath(spec.origin)
        folder = os.path.dirname(path)
        if os.geteuid() != 0 or _may_be_read(path, folder, level):
            packages[name] = Package(folder, distribution, version(distribution))
    return packages


def _may_be_read(path: str, folder: str, level: Level) -> bool:
    if level == "B":
        return confinement.may_be_read_by_all(path)
    is_open = os.stat(folder).st_mode & stat.S_IXOTH
    return bool(is_open and os.stat(path).st_mode & stat.S_IROTH)


def command(
    level: Level, *, cgroup_path: str = "", packages: Sequence[str] = ()
) -> list[str]:
    """Return what is run: Python without site-packages, that reads its program from a
    pipe.

    Args:
        cgroup_path: that of the control group which it moves into.
        packages: those that functions will import; with any, all may be read.
    """
    python = [_python(), "-P", "-s", "-S", "-B", "-c", _BOOT]
    if level == "A":
        program = bubblewrap()
        assert program is not None
        python = [program, *_bwrap_options(_folders(level, packages)), "--", *python]
    return [sys.executable, "-I", str(_FOLDER / "launch.py"), cgroup_path, *python]


def environment() -> dict[str, str]:
    """Hashing as everywhere, so that a resumed run scores as it did; and no secrets."""
    return {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


def options(
    level: Level, *, uid: int | None, packages: Sequence[str] = ()
) -> dict[str, Any]:
    """Args: uid: whom it becomes; None where only root could become another. packages:
    as for `command`; they are imported before the first call.
    """
    return {
        "needs_landlock": level == "B",
        # A user of bubblewrap's making is counted for itself.
        "shares_uid": level == "B" and uid is None,
        "readable": [*_readable(), *_folders(level, packages), *_DATA],
        "packages": packages_here(level) if packages else {},
        "ahead": list(packages),
        "uid": uid,
    }


def _folders(level: Level, packages: Sequence[str]) -> list[str]:
    """Return the folders of all packages, and of the shared libraries beside them."""
    if not packages:
        return []
    folders = [package.folder for package in packages_here(level).values()]
    libraries = (f"{folder}.libs" for folder in folders)
    return [*folders, *(folder for folder in libraries if os.path.isdir(folder))]


def _bwrap_options(packages: Sequence[str]) -> list[str]:
    """Bubblewrap's options. As root none for users: the sandbox drops root by itself,
    since a user made by bubblewrap is not one that the kernel counts for.
    """
    options = [
        "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--hostname", "sandbox", "--new-session",
        "--as-pid-1", "--cap-drop", "ALL",
    ]  # fmt: skip
    if os.geteuid() == 0:
        options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        options += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    python = _python()
    # Each folder that a path lies in, the outer ones first; without the root.
    folders = {
        str(folder)
        for path in [*_readable(), *packages, python]
        for folder in Path(path).parents
    }
    for folder in sorted(folders - {"/"}):
        # By itself bubblewrap makes them as closed as a home outside is.
        options += ["--perms", "0755", "--dir", folder]
    for path in _readable():
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        else:
            options += ["--ro-bind-try", path, path]
    for path in packages:
        options += ["--ro-bind", path, path]
    for path in _DATA:
        if not path.startswith("/dev"):
            options += ["--ro-bind-try", path, path]
    options += ["--ro-bind-try", python, python, "--dev", "/dev", "--chdir", "/"]
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/"]


def _readable() -> list[str]:
    """Folders of the standard library and of shared libraries."""
    base = sys.base_prefix  # not a virtual environment's, which has our packages
    paths = sysconfig.get_paths(vars={"base": base, "platbase": base})
    own = [paths["stdlib"], paths["platstdlib"], f"{sys.base_prefix}/lib"]
    folders = [*_LIBRARIES, *own]
    return [path for path in dict.fromkeys(folders) if os.path.lexists(path)]


def _python() -> str:
    """Return the interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


# It makes modules of the sources that it is sent, and asks the last one to begin.
_BOOT = """\
import json, os, sys
def take():
    size = int.from_bytes(os.read(0, 4), "little")
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            raise SystemExit("The process that started this sandbox is gone.")
        data += part
    return data
for name, source in json.loads(take()):
    module = type(sys)(name)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)
    exec(compile(source, "<sandbox>", "exec"), module.__dict__)
module.main()
"""
_INSIDE = (
    "confinement", "messages", "scratch", "plans", "calls", "call_process",
    "zygote",
)  # fmt: skip


def sources() -> list[tuple[str, str]]:
    """Give what the sandbox runs: modules by name, each after those that it imports."""
    package = "trainer.rewards.sandbox.inside"
    parts = package.split(".")
    empty = [".".join(parts[: n + 1]) for n in range(len(parts))]
    modules = [
        (f"{package}.{name}", (_FOLDER / "inside" / f"{name}.py").read_text("utf-8"))
        for name in _INSIDE
    ]
    return [*((name, "") for name in empty), *modules]
