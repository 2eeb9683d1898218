"""Which rows of an evaluation set a run would be trained on."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.datasets.analysis.leaks import KINDS, find_leak
from dashboard.datasets.models import DatasetVersion, VersionLeak


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    held_out: DatasetVersion
    trained_on: DatasetVersion
    found: VersionLeak | None = None  # none is looked for in a version itself

    @property
    def is_known(self) -> bool:
        return self.found is None or self.found.is_done

    @property
    def counts(self) -> dict[str, int]:
        if self.found is None:
            return {"exact": self.held_out.num_rows}
        result = self.found.result or {}
        return {kind: result.get(kind, 0) for kind in KINDS}

    @property
    def num_rows(self) -> int:
        return sum(self.counts.values())

    @property
    def sentence(self) -> str:
        total = self.held_out.num_rows
        if self.found is None:
            return f"{self.held_out} is what is trained on, all {total:,} rows of it."
        if not self.num_rows:
            return f"No row of {self.held_out} is in {self.trained_on}."
        named = [
            f"{count:,} with {KINDS[kind]}" if kind != "near" else f"{count:,} nearly"
            for kind, count in self.counts.items()
            if count
        ]
        return (
            f"{self.num_rows:,} of the {total:,} rows of {self.held_out} are trained "
            f"on in {self.trained_on}: {', '.join(named)}."
        )


def look_for_leak(held_out: DatasetVersion, trained_on: DatasetVersion) -> Leak:
    """Looks now where there are few rows, else asks for it in the background."""
    if held_out == trained_on:
        return Leak(held_out=held_out, trained_on=trained_on)
    found = find_leak(held_out, trained_on)
    return Leak(held_out=held_out, trained_on=trained_on, found=found)


def known_leak(held_out: DatasetVersion, trained_on: DatasetVersion) -> Leak | None:
    """What was found before; one query."""
    if held_out == trained_on:
        return Leak(held_out=held_out, trained_on=trained_on)
    found = (
        VersionLeak.objects.defer(*KINDS)
        .filter(held_out=held_out, trained_on=trained_on, result__isnull=False)
        .first()
    )
    if found is None:
        return None
    return Leak(held_out=held_out, trained_on=trained_on, found=found)
