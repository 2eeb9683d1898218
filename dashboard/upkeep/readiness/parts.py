"""The parts that serving takes, each with its state, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["ok", "degraded", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Without a required one pages are not served whole; without others, less well."""

    name: str
    state: State
    value: str
    is_required: bool = False
    age_seconds: float | None = None
    remedy: str = ""  # where it is not ok
    runbook: str = ""  # a heading of RUNBOOK.md, as its address ends

    def as_json(self) -> dict[str, Any]:
        age = self.age_seconds
        return {
            "name": self.name,
            "state": self.state,
            "required": self.is_required,
            "value": self.value,
            "age_seconds": None if age is None else round(age, 1),
            "remedy": self.remedy,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    parts: Sequence[Part]

    @property
    def is_ready(self) -> bool:
        return not any(p.is_required and p.state == "failed" for p in self.parts)

    @property
    def status(self) -> str:
        if not self.is_ready:
            return "not ready"
        return "ready" if all(p.state == "ok" for p in self.parts) else "degraded"

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)


def missing(name: str, value: str, remedy: str, *, runbook: str, **more: Any) -> Part:
    return Part(
        name=name, state="failed", value=value, remedy=remedy, runbook=runbook, **more
    )
