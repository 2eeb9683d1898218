"""How a run is opened, within what a server takes."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.client.lines import number, plain

MAX_SETTINGS_BYTES = 60_000
MAX_STEP = 2**31 - 1


def opening_tree(
    *,
    name: str,
    num_steps: int | None,
    model: str,
    settings: Mapping[str, Any] | None,
    rules: Mapping[str, float] | None,
    right_from: float | None,
    tags: Sequence[str],
    notes: str,
    tool: str,
    version: str,
) -> dict[str, Any]:
    """What is longer than a server takes is cut, rather than the run not shown."""
    weights = {str(rule)[:40]: number(weight) for rule, weight in (rules or {}).items()}
    known = {
        rule: 1.0 if weight is None else weight for rule, weight in weights.items()
    }
    return {
        "key": str(uuid.uuid4()),
        "name": (name.strip() or "run")[:80],
        "tool": (tool.strip() or "own loop")[:40],
        "version": version[:40],
        "model": model[:200],
        "host": socket.gethostname()[:120],
        "num_steps": min(max(int(num_steps or 1), 1), MAX_STEP),
        "settings": _fitting(plain(settings or {})),
        "rules": dict(list(known.items())[:64]),
        "right_from": None if right_from is None else number(right_from),
        "tags": [str(tag)[:40] for tag in tags][:20],
        "notes": notes[:20_000],
    }


def _fitting(settings: dict[str, Any]) -> dict[str, Any]:
    """Without the longest ones, until the others fit."""
    sizes = {name: len(json.dumps([name, one])) for name, one in settings.items()}
    total = sum(sizes.values())
    for name in sorted(sizes, key=lambda one: -sizes[one]):
        if total <= MAX_SETTINGS_BYTES:
            break
        total -= sizes[name]
        settings = {n: one for n, one in settings.items() if n != name}
    return settings
