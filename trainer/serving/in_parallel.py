"""Asking several servers at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


def in_parallel(acts: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """What each gives, in order; all have ended before the first error is raised."""
    if len(acts) < 2:
        return [act() for act in acts]
    with ThreadPoolExecutor(len(acts), thread_name_prefix="server") as threads:
        futures = [threads.submit(act) for act in acts]
    return [future.result() for future in futures]
