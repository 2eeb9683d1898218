"""The machine's own time, as supervisors read it; the ledger moves the database's."""

from __future__ import annotations

from tests.dashboard.training.machine.actors import current


class Clock:
    """Stands in for the module `time` where supervisors wait."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, _seconds: float) -> None:
        current().give_back()
