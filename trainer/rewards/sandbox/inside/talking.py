"""How a call's child hears questions and replies: JSON over its two pipes."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, TextIO

from trainer.rewards.sandbox.inside.confinement import QUESTIONS, REPLIES
from trainer.rewards.sandbox.inside.frames import HungUp, receive, send

_MAX_TEXT = 300
_ready: tuple[TextIO, TextIO] | None = None


def hear() -> Any:
    return json.loads(receive(QUESTIONS))


def questions() -> Iterator[Any]:
    while True:
        try:
            yield hear()
        except HungUp:
            return


def reply(message: Any) -> None:
    send(REPLIES, json.dumps(message).encode())


def open_outputs(*, at_once: bool) -> None:
    """Streams of its own for what is printed, at once or when there is enough of it.

    At once, it is there also when the time is up. Half a character's pair is spelled
    out.
    """
    stdout, stderr = (_ready or _streams(1)) if at_once else _streams(-1)
    sys.stdout, sys.stderr = stdout, stderr
    sys.__stdout__, sys.__stderr__ = stdout, stderr  # type: ignore[misc,assignment]


def prepare_outputs() -> None:
    """Have the streams ready, over pipes as they will be: a tenth of a call's time."""
    global _ready
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    reader, writer = os.pipe()
    for descriptor in (1, 2):
        os.dup2(writer, descriptor)
    _ready = _streams(1)
    for descriptor, before in zip((1, 2), kept, strict=True):
        os.dup2(before, descriptor)
    for descriptor in (*kept, reader, writer):
        os.close(descriptor)


def _streams(buffering: int) -> tuple[TextIO, TextIO]:
    stdout, stderr = (
        open(  # noqa: SIM115 - for as long as the process runs
            descriptor,
            "w",
            encoding="utf-8",
            errors="backslashreplace",
            buffering=buffering,
            closefd=False,
        )
        for descriptor in (1, 2)
    )
    return stdout, stderr


def run(source: str, name: str, names: dict[str, Any]) -> None:
    exec(compile(source, name, "exec"), names)  # nosec B102 # noqa: S102 - what this process is for


def describe(error: BaseException, name: str) -> str:
    """One line: what was raised, and at which line of the source of this name.

    An object made by what ran may raise anything when it is asked for its text.
    """
    try:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
    except BaseException:  # noqa: BLE001 - see above
        text = "an error without a text"
    line = _line_of(error, name)
    where = f" (line {line})" if line else ""
    return " ".join(text[:_MAX_TEXT].split()) + where


def _line_of(error: BaseException, name: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == name:
        return error.lineno
    found = None
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == name:
            found = frame.tb_lineno
        frame = frame.tb_next
    return found


def print_traceback(error: BaseException) -> None:
    """For the log; a chain of errors may be endless, or raise by itself."""
    try:
        traceback.print_exception(error, limit=-20, chain=False)
    except BaseException:  # noqa: BLE001 - see above
        os.write(2, b"An error whose text cannot be shown.\n")
