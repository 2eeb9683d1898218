"""A process with a loaded Python that forks a child for each call.

It alone talks to the caller. The child of a call gets its questions one by one, each
after the reply to the previous one; its output is passed on as bytes and never parsed
here.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import io
import json
import math
import os
import random
import sys
import time
from contextlib import suppress
from typing import Any

from trainer.rewards.sandbox.inside import scratch
from trainer.rewards.sandbox.inside.call_process import CallProcess, hold_places
from trainer.rewards.sandbox.inside.calls import (
    PROGRAM_SOURCE,
    attempt,
    judge,
    number,
)
from trainer.rewards.sandbox.inside.confinement import (
    Walls,
    confine_zygote,
    count_others,
    gain_nothing,
    hide_memory,
    landlock_version,
    make_rules,
    make_template,
    may_be_read_by_all,
    own_filter,
)
from trainer.rewards.sandbox.inside.messages import (
    HungUp,
    frame,
    module_names,
    prepare_outputs,
    receive,
    send,
)

_TIMES = 24  # code is rewritten after 8 calls, and may be given up on and tried again
_SOURCE = """\
import math, re
def reward(prompt, completion, answer, columns):
    words = [word.lower() for word in completion.split()]
    print(len(words), f"{answer}")
    found = re.search("word", completion)
    return 1.0 if found and answer in words and math.isfinite(1.5) else 0.0
def add(a, b):
    return a + b
"""
_ARGUMENTS = {"prompt": "?", "completion": "a word", "answer": "word", "columns": {}}


def warm_up(template: bytes) -> None:
    """Do once, with code of ours alone, whatever a call does.

    Python rewrites a function's code while it runs for the first times, and fills
    caches. A forked child pays for each page that it writes to by a copy.
    """
    stdout = sys.stdout
    try:
        with open(os.devnull, "w", encoding="utf-8") as sys.stdout:
            for _ in range(_TIMES):
                own_filter(template, pid=1)
                question = json.loads(
                    json.dumps({"source": _SOURCE, "arguments": _ARGUMENTS})
                )
                number(judge(question["source"], question["arguments"]))
                names = module_names("completion")
                attempt(_SOURCE, PROGRAM_SOURCE, names, is_value=False)
                for code in (
                    "add(1, 2) == 3",
                    "add([1], [2.5])",
                    "add('a', 'b')",
                    "1 / 0",
                ):
                    reply = attempt(code, "<test>", names, is_value=True)
                    io.BytesIO().write(frame(json.dumps(reply).encode()))
    finally:
        sys.stdout = stdout
    prepare_outputs()


# Loaded once, so that a call need not. Each costs every call a little, since what is
# loaded is copied for it: OpenSSL alone, which hashlib brings, a tenth of its time.
AHEAD = """
    array ast bisect calendar cmath collections copy csv dataclasses datetime decimal
    difflib enum fractions functools heapq inspect io itertools json linecache math
    numbers operator pprint random re statistics string struct textwrap threading time
    traceback types typing unicodedata warnings weakref
"""
# Where another user cannot read the library, these and those above are what there is.
REST = """
    asyncio base64 bz2 codecs concurrent.futures.thread encodings.idna graphlib hashlib
    html ipaddress keyword locale pathlib queue secrets tempfile timeit tokenize
    unittest urllib.parse uuid xml.etree.ElementTree zlib zoneinfo
"""
_RECOUNT_SECONDS = 1.0


def main() -> None:
    """Answer calls from standard input until it is hung up."""
    options = json.loads(receive(0))
    hold_places()
    walls = _prepare(options)
    send(
        1,
        json.dumps({"landlock": walls.files is not None, "uid": os.getuid()}).encode(),
    )
    others = _Others(os.getuid()) if options["shares_uid"] else None
    try:
        while True:
            _serve(walls, others)
    except (HungUp, BrokenPipeError):
        os._exit(0)


def _serve(walls: Walls, others: _Others | None) -> None:
    """Serve one call.

    The child is forked before its questions are read, so it has none. A function of its
    own: code reads the frames that it was forked in, and this one ends with the call.
    """
    call = json.loads(receive(0))
    process = CallProcess(call, walls, num_others=others.count() if others else 0)
    outcome = process.converse([receive(0) for _ in range(call["num_questions"])])
    outcome["call"] = call["call"]
    send(1, json.dumps(outcome).encode())
    for part in (process.stdout.data, process.stderr.data, *process.replies):
        send(1, bytes(part))


def _prepare(options: dict[str, Any]) -> Walls:
    """Prepare what no child needs to do again; OSError where this level is refused."""
    scratch.install()
    is_open = options["uid"] is None or may_be_read_by_all(os.__file__)
    for name in (AHEAD if is_open else AHEAD + REST).split():
        with suppress(ImportError):  # a build without it
            importlib.import_module(name)
    _offer(options["packages"], ahead=options["ahead"])
    _forget_the_machine()
    # What `site` would give programs, which was left out with the packages.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    version = landlock_version()
    if not version and options["needs_landlock"]:
        raise OSError("this kernel does not support Landlock")
    rules = make_rules(options["readable"], version=version) if version else None
    if options["uid"] is not None:
        os.setgroups([])
        os.setresgid(options["uid"], options["uid"], options["uid"])
        os.setresuid(options["uid"], options["uid"], options["uid"])
    gain_nothing()
    hide_memory()
    os.environ.clear()
    os.environ |= _ONE_THREAD if options["packages"] else {}
    sys.orig_argv[:] = sys.argv[:] = [""]
    os.chdir("/")
    template = make_template()
    warm_up(template)
    random.seed(0)  # so that a resumed run scores as it did
    confine_zygote()
    # A child's garbage collector would otherwise copy every page that it looks through.
    gc.collect()
    gc.freeze()
    return Walls(files=rules, calls=template)


class _Distribution:
    """The facts that `importlib.metadata` gives; a subclass of its own takes 0.1 s."""

    def __init__(self, name: str, version: str) -> None:
        self.version = version
        self.metadata = {"Name": name, "Version": version}


class _Packages:
    """Finds the packages that are offered, and none of their neighbours."""

    def __init__(self, packages: dict[str, tuple[str, str, str]]) -> None:
        self._packages = packages  # folder, distribution, version

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in self._packages:
            return None
        from importlib.util import spec_from_file_location  # noqa: PLC0415 - as rarely needed

        folder = self._packages[name][0]
        return spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )

    def find_distributions(self, context: Any) -> list[_Distribution]:
        return [
            _Distribution(name, version)
            for _, name, version in self._packages.values()
            if context.name in (None, name)
        ]


# A thread for each core would not live through a fork; each has memory of its own.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


def _offer(packages: dict[str, tuple[str, str, str]], *, ahead: list[str]) -> None:
    """Import those that the sandbox's functions do: sympy alone takes half a second,
    which each call would wait for.
    """
    if not packages:
        return
    sys.meta_path.append(_Packages(packages))
    os.environ |= _ONE_THREAD
    for name in ahead:
        with suppress(ImportError):  # its function fails with it when it is called
            importlib.import_module(name)


def _forget_the_machine() -> None:
    """`platform` answers without a system call, and without this machine's name."""
    import platform  # noqa: PLC0415 - beside its private cache

    machine = platform.uname()
    platform._uname_cache = platform.uname_result(  # type: ignore[attr-defined]
        machine.system, "sandbox", "", "", machine.machine
    )


class _Others:
    """The number of threads a user has beside ours. To look takes as long as a call."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._counted_at = -math.inf
        self._count = 0

    def count(self) -> int:
        now = time.monotonic()
        if now - self._counted_at > _RECOUNT_SECONDS:
            self._count, self._counted_at = count_others(self._uid), now
        return self._count
