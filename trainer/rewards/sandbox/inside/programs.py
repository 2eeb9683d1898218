"""The calls "program" and "steps": code that a model wrote, run to see what it does.

Neither knows what is expected of the code: what it printed and what its functions gave
is compared elsewhere.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from trainer.rewards.sandbox.inside.plain import encode
from trainer.rewards.sandbox.inside.talking import (
    describe,
    hear,
    open_outputs,
    questions,
    reply,
    run,
)

SOURCE = "<completion>"
_STEP = "<test>"
_PIPE_BYTES = 65_536


def perform_program() -> None:
    """A whole program with text on its standard input; its output is the result."""
    question = hear()
    _give_input(question["stdin"].encode("utf-8", "replace"))
    open_outputs(at_once=False)
    run(question["source"], SOURCE, main_names())


def _give_input(text: bytes) -> None:
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    os.close(reader)
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if len(text) <= _PIPE_BYTES:
        _write(writer, text)
    else:
        threading.Thread(target=_write, args=(writer, text), daemon=True).start()


def _write(writer: int, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(writer, left) :]
    os.close(writer)


def perform_steps() -> None:
    """Run the source, then do each step that is asked for, in one namespace.

    Replies {} or {"value": as JSON} to each; {"error": one line} where it raised.
    """
    open_outputs(at_once=True)
    names = main_names()
    question = hear()
    reply(attempt(question["source"], SOURCE, names, is_value=False))
    for step in questions():
        reply(attempt(step["code"], _STEP, names, is_value=step["is_value"]))


def attempt(
    code: str, name: str, names: dict[str, Any], *, is_value: bool
) -> dict[str, Any]:
    try:
        if not is_value:
            run(code, name, names)
            return {}
        value = eval(compile(code, name, "eval"), names)  # nosec B307 # noqa: S307 - as `run`
        return {"value": encode(value)}
    except BaseException as error:  # noqa: BLE001 - SystemExit too: a step failed
        return {"error": describe(error, name)}


def main_names() -> dict[str, Any]:
    # As a program's own: `if __name__ == "__main__"` is what starts many of them.
    return {"__name__": "__main__", "__builtins__": __builtins__}
