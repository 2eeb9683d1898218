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
_RULES = 5  # the descriptor of Landlock's rules, until they hold


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


def _arrange(pipes: tuple[int, int, int, int], rules: int | None) -> None:
    """Its pipes as 1 to 4, the rules as 5, nothing as 0, and none of the others."""
    high = [os.dup2(each, 100 + number) for number, each in enumerate(pipes)]
    nothing = os.dup2(os.open(os.devnull, os.O_RDONLY), 110)
    kept = None if rules is None else os.dup2(rules, 111)
    os.dup2(nothing, 0)
    for target, source in enumerate(high, start=1):
        os.dup2(source, target)
    if kept is not None:
        os.dup2(kept, _RULES)
    os.closerange(_RULES + (kept is not None), 256)
    assert (QUESTIONS, REPLIES) == (3, 4)


def _leave(code: int) -> None:
    """End at once, after what was printed is out; without another's exit handlers."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001, S112 - replaced by what ran, perhaps
            continue
    os._exit(code)
