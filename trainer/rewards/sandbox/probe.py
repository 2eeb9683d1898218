"""Which level of sandbox this machine can run, found out by trying to break it."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from trainer.rewards.sandbox.levels import LEVELS, NAMES, Level, obstacle
from trainer.rewards.sandbox.limits import Limits
from trainer.rewards.sandbox.slot import START_SECONDS, Slot, SlotLost

# Files that are on most machines, and of ours; none may be readable.
_PATHS = ("/etc/passwd", "/etc/hostname", "/proc/1/environ", str(Path(__file__)))
_FORGET_SECONDS = 60.0  # after which a machine without a sandbox is tried once more


@dataclass(frozen=True, kw_only=True)
class Found:
    """The strongest level, and why the others cannot be had, as predicates.

    has_group: whether a control group holds its memory and processes together.
    """

    level: Level | None
    reasons: dict[Level, str]
    has_group: bool = False

    @property
    def sentence(self) -> str:
        if self.level is not None:
            name = NAMES[self.level]
            return f"Reward code runs in a sandbox of level {self.level} ({name})."
        reasons = "; ".join(f"{level}: {why}" for level, why in self.reasons.items())
        return (
            f"Reward code cannot run on this machine, since no sandbox can ({reasons})."
            " Install bubblewrap or use Linux 5.13 or newer, then run `manage.py "
            "check_sandbox`; or use rules without code."
        )


def try_levels(*, timeout_seconds: float = 4 * START_SECONDS) -> Found:
    """Try each level, the strongest first, until one holds."""
    deadline = time.monotonic() + timeout_seconds
    reasons: dict[Level, str] = {}
    for level in LEVELS:
        reason = obstacle(level)
        if reason is None:
            trial = try_level(level, deadline - time.monotonic())
            if trial.fault is None:
                return Found(level=level, reasons=reasons, has_group=trial.has_group)
            reason = trial.fault
        reasons[level] = reason
    return Found(level=None, reasons=reasons)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Why a level cannot be had; None: it starts, and nothing gets through."""

    fault: str | None
    has_group: bool = False


def try_level(level: Level, timeout_seconds: float = START_SECONDS) -> Trial:
    try:
        slot = Slot(level, timeout_seconds=min(START_SECONDS, timeout_seconds))
    except (SlotLost, OSError) as error:
        return Trial(fault=f"it does not start: {error}")
    has_group = slot.group is not None
    try:
        answer = slot.ask("attempts", [{"paths": _PATHS}], Limits())
    except SlotLost as error:
        return Trial(fault=str(error))
    slot.end()
    if answer.end != "ended" or answer.code != 0 or len(answer.replies) != 1:
        said = answer.stderr[-200:]
        return Trial(fault=f"its check ended with {answer.code} ({said!r})")
    happened = json.loads(answer.replies[0])
    if happened:
        return Trial(fault=f"it does not keep code from: {', '.join(happened)}")
    return Trial(fault=None, has_group=has_group)


_lock = threading.Lock()
_found: Found | None = None
_found_at = 0.0


def found_here(*, timeout_seconds: float = 4 * START_SECONDS) -> Found:
    """As `try_levels`; a level once found is remembered by this process."""
    global _found, _found_at
    with _lock:
        is_known = _found is not None and (
            _found.level is not None or time.monotonic() - _found_at < _FORGET_SECONDS
        )
        if not is_known:
            found = try_levels(timeout_seconds=timeout_seconds)
            if found.level is None and timeout_seconds < START_SECONDS:
                return found  # it may have been the time alone
            _found, _found_at = found, time.monotonic()
        assert _found is not None
        return _found
