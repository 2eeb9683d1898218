"""Which sandbox this process's machine has for rules that run code, for pages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trainer.rewards.sandbox.levels import NAMES
from trainer.rewards.sandbox.slot import Found, found_here

# A page waits no longer for a machine that is too busy to tell.
_PAGE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A machine's sandbox as a page tells of it, kept with a worker as JSON."""

    level: str | None
    name: str  # what the level is made of; "" where there is none
    has_group: bool
    problem: str  # why there is none, and what to do

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def sandbox_here(*, timeout_seconds: float = _PAGE_SECONDS) -> Sandbox:
    """Looked for once; where there is none, again after a minute."""
    return describe(found_here(timeout_seconds=timeout_seconds))


def describe(found: Found) -> Sandbox:
    return Sandbox(
        level=found.level,
        name=NAMES[found.level] if found.level else "",
        has_group=found.has_group,
        problem="" if found.level else found.sentence,
    )
