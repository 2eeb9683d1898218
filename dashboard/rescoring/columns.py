"""All that a rescoring found, read in one piece."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.rescoring.models import Rescoring
from dashboard.rescoring.records import COMPLETION, GROUP, Records, unpack


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of all groups and completions, by step and prompt."""

    groups: Records
    completions: Records


def read_columns(rescoring: Rescoring) -> Columns:
    """One query; some 50 bytes for each completion."""
    parts = rescoring.scored.order_by("step").values_list("groups", "completions")
    groups, completions = [], []
    for of_groups, of_completions in parts.iterator():
        groups.append(bytes(of_groups))
        completions.append(bytes(of_completions))
    return Columns(
        unpack(b"".join(groups), GROUP), unpack(b"".join(completions), COMPLETION)
    )
