"""The token values of a group, or why there are none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dashboard.runs.models import Run
from dashboard.runs.progress import ordinal
from dashboard.samples.models import Group, GroupTokens
from dashboard.samples.token_records import unpack_tokens
from trainer.config import LoggingConfig

MAX_NEAR = 12


def read_tokens(group: Group) -> list[dict[str, Any]] | None:
    """Of each completion; None where they were not kept. One query."""
    kept = GroupTokens.objects.filter(group=group)
    packed = kept.values_list("packed", flat=True).first()
    return None if packed is None else unpack_tokens(bytes(packed))


@dataclass(frozen=True, kw_only=True, slots=True)
class Near:
    """Groups whose token values are kept: of the same step, and of the same prompt."""

    prompts: list[int]
    steps: list[int]


def find_near(group: Group) -> Near:
    """The nearest few of each. Two queries."""
    kept = Group.objects.current().filter(run_id=group.run_id, tokens__isnull=False)
    here = kept.filter(step=group.step).values_list("prompt_index", flat=True)
    same = kept.filter(prompt_index=group.prompt_index).values_list("step", flat=True)
    return Near(
        prompts=_nearest(here, group.prompt_index), steps=_nearest(same, group.step)
    )


def _nearest(found: Iterable[int], place: int) -> list[int]:
    return sorted(sorted(found, key=lambda each: abs(each - place))[:MAX_NEAR])


def which_are_kept(run: Run) -> str:
    """A sentence on the groups whose token values the run keeps."""
    if run.is_outside:
        return f"{run.imported_from} has sent no token values of this group."
    if run.is_imported:
        return f"Files of {run.imported_from} hold no token values."
    # Phases cannot change this part.
    logging = LoggingConfig.model_validate(run.config["logging"])
    if logging.token_groups == 0:
        return "Token values are kept for no group (logging.token_groups is 0)."
    groups = (
        "1 group" if logging.token_groups == 1 else f"{logging.token_groups} groups"
    )
    every = logging.tokens_every_steps
    steps = "every step" if every == 1 else f"the first and every {ordinal(every)} step"
    return (
        f"Token values are kept for {groups} of {steps} (logging.token_groups, "
        "logging.tokens_every_steps). This group is not among them."
    )
