"""Looking without waiting for long: threads that may hang, answers that are shared."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")
_at_work: dict[str, threading.Thread] = {}


async def in_thread(name: str, look: Callable[[], T]) -> T:
    """In a thread of its own, which a disk that hangs keeps for itself.

    While that lasts no other of the name is started: TimeoutError at once.
    """
    before = _at_work.get(name)
    if before is not None and before.is_alive():
        before.join(0.05)  # it may just be ending
        if before.is_alive():
            raise TimeoutError(f"{name}: the last look has not ended yet")
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # T, without an error

    def work() -> None:
        result, error = None, None
        try:
            result = look()
        except Exception as raised:  # noqa: BLE001 - handed to whoever waits
            error = raised
        with suppress(RuntimeError):  # whoever waited has gone, with its loop
            loop.call_soon_threadsafe(settle, result, error)

    thread = _at_work[name] = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return await future


class Shared(Generic[T]):
    """One look at a time and one answer a second, however many ask: strangers may."""

    def __init__(self, look: Callable[[], Awaitable[T]], *, seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Future[T] | None = None
        self._until = 0.0

    async def read(self) -> T:
        loop = asyncio.get_running_loop()
        is_over = self._task is None or self._loop is not loop
        if is_over or (self._task and self._task.done() and self._is_old()):
            self._loop = loop
            self._task = asyncio.ensure_future(self._look_now())
        assert self._task is not None
        return await asyncio.shield(self._task)

    async def _look_now(self) -> T:
        try:
            return await self._look()
        finally:
            self._until = time.monotonic() + self._seconds

    def _is_old(self) -> bool:
        return time.monotonic() >= self._until

    def forget(self) -> None:
        self._task = None
