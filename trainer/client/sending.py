"""The thread that sends a spool while its trainer trains."""

from __future__ import annotations

import logging
import random
import threading
import time

from trainer.client.delivery import Delivery
from trainer.client.http import Refused, Server, Unreachable
from trainer.client.spool import Spool

logger = logging.getLogger("cohort")
BEAT_SECONDS = 30.0
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
REFUSED_RETRY = 300.0  # a token may be mended, a server brought up to date
GATHER_SECONDS = 0.5  # what is told within it goes in one request


class Sender:
    """Without a server it sends nothing."""

    def __init__(self, spool: Spool, server: Server | None) -> None:
        self._spool = spool
        self._delivery = Delivery(spool, server) if server else None
        self._something = threading.Event()
        self._closing = threading.Event()
        self._end = 0.0
        self._retry = FIRST_RETRY
        self._said = ""
        self._has_all = False
        self._thread = threading.Thread(
            target=self._send, name="cohort-sender", daemon=True
        )

    @property
    def address(self) -> str:
        return self._delivery.address if self._delivery else ""

    def start(self) -> None:
        if self._delivery:
            self._thread.start()

    def wake(self) -> None:
        self._something.set()

    def close(self, timeout_seconds: float) -> None:
        """Try for so long; the rest stays on the disk."""
        self._end = time.monotonic() + timeout_seconds
        self._closing.set()
        self._something.set()
        if self._delivery is None:
            return
        self._thread.join(timeout_seconds)
        if self._thread.is_alive() or self._said or not self._has_all:
            logger.warning(
                "Not all of the run was sent; it is kept in %s. `cohort sync %s` "
                "sends the rest.",
                self._spool.folder,
                self._spool.folder,
            )

    def _send(self) -> None:
        assert self._delivery
        while not self._delivery.over:
            is_new = self._something.wait(BEAT_SECONDS)
            if is_new and not self._closing.is_set():
                self._closing.wait(GATHER_SECONDS)
            self._something.clear()
            is_last = self._closing.is_set()
            wait = self._try(is_new=is_new)
            if is_last and (wait == 0 or time.monotonic() + wait > self._end):
                return
            if wait:
                self._something.set()
                self._rest(wait, is_last=is_last)
        logger.warning("Cohort takes no more of this run: %s", self._delivery.over)

    def _rest(self, seconds: float, *, is_last: bool) -> None:
        if is_last:
            time.sleep(seconds)
        else:
            self._closing.wait(seconds)

    def _try(self, *, is_new: bool) -> float:
        """Seconds to wait before the same is tried again; 0: it is done."""
        assert self._delivery
        try:
            self._has_all = self._delivery.deliver(is_enough=self._is_late)
            if not is_new:
                self._delivery.beat()
        except Unreachable as error:
            wait = error.after_seconds or self._retry * random.uniform(0.5, 1.0)
            self._retry = min(self._retry * 2, LONGEST_RETRY)
            return self._put_off(error, wait)
        except Refused as error:
            return self._put_off(error, REFUSED_RETRY)
        except Exception as error:
            logger.exception("Cohort could not send this run.")
            return self._put_off(error, REFUSED_RETRY)
        self._retry, self._said = FIRST_RETRY, ""
        return 0.0

    def _put_off(self, error: Exception, wait: float) -> float:
        if str(error) != self._said:  # once, not every minute
            self._said = str(error)
            logger.warning("Cohort is told later: %s", error)
        return wait

    def _is_late(self) -> bool:
        return self._closing.is_set() and time.monotonic() > self._end
