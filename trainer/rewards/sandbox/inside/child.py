"""The life of a call's process, from its fork to its end."""

from __future__ import annotations

import os
import sys
from typing import Any

from trainer.rewards.sandbox.inside.calls import CALLS
from trainer.rewards.sandbox.inside.confinement import (
    QUESTIONS,
    REPLIES,
    Walls,
    confine,
)
from trainer.rewards.sandbox.inside.frames import send

READY = b"ready"
NOTHING = 5  # a descriptor that the zygote holds open, for standard input
_RULES = 6  # that of Landlock's rules, until they hold


def run_child(
    call: dict[str, Any],
    pipes: tuple[int, int, int, int],
    *,
    parent: int,
    walls: Walls,
    num_others: int,
) -> None:
    """Never returns."""
    code = 1
    try:
        _arrange(pipes, walls.files)
        if walls.files is not None:
            walls = walls._replace(files=_RULES)
        confine(call["limits"], walls, parent=parent, num_others=num_others)
        perform = CALLS[call["kind"]]
        call.clear()
        send(REPLIES, READY)
        perform()
        code = 0
    except SystemExit as exit_:
        code = _exit_code(exit_.code)
    except BaseException:  # noqa: BLE001 - whatever it is, it is told on stderr
        sys.excepthook(*sys.exc_info())
    finally:
        _leave(code)


def _exit_code(wanted: object) -> int:
    if wanted is None:
        return 0
    return wanted if isinstance(wanted, int) and 0 <= wanted < 256 else 1


def hold_places() -> None:
    """In the zygote: no pipe of a call gets a number that a child needs for its own."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number in (QUESTIONS, REPLIES, NOTHING, _RULES):
        os.dup2(nothing, number)
    if nothing not in (QUESTIONS, REPLIES, NOTHING, _RULES):
        os.close(nothing)


def _arrange(pipes: tuple[int, int, int, int], rules: int | None) -> None:
    """Its pipes as 1 to 4, the rules as 6, nothing as 0, and none of the others."""
    for target, source in enumerate((NOTHING, *pipes)):
        os.dup2(source, target)
    if rules is not None:
        os.dup2(rules, _RULES)
    os.close(NOTHING)
    os.closerange(_RULES + (rules is not None), 256)
    assert (QUESTIONS, REPLIES) == (3, 4)


def _leave(code: int) -> None:
    """End at once, after what was printed is out; without another's exit handlers."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001, S112 - replaced by what ran, perhaps
            continue
    os._exit(code)
