"""How a call ended, in words, and its replies, read with care."""

from __future__ import annotations

import json
import signal
from typing import Any

from trainer.rewards.sandbox.limits import Limits
from trainer.rewards.sandbox.slot import Answer


class Unreadable:
    """In place of a reply that is no JSON; equal to nothing that is expected."""


UNREADABLE = Unreadable()


def parsed(reply: bytes) -> Any:
    """The JSON, or UNREADABLE; a process that may write anything wrote it."""
    try:
        return json.loads(reply)
    except (ValueError, RecursionError):
        return UNREADABLE


def how_it_ended(answer: Answer, limits: Limits) -> str | None:
    """A predicate for a call that was ended, or ended itself with an error."""
    if answer.end == "time":
        return f"took longer than {limits.wall_seconds:g} s"
    if answer.end == "flood":
        return "gave back more than is taken in"
    if answer.code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"computed for longer than {limits.wall_seconds:g} s"
    if answer.code < 0:
        return f"was ended by {_name(-answer.code)}, as by too much memory or recursion"
    return f"ended its process with exit code {answer.code}" if answer.code else None


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
