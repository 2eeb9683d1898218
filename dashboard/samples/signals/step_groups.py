"""The groups of one step, as a rollup is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.samples.models import Group
from trainer.events import GroupScored


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGroup:
    """One group; lists are by completion."""

    prompt_index: int
    reward_mean: float | None
    reward_std: float | None
    signal: str
    is_trained: bool
    rewards: Sequence[float | None]
    advantages: Sequence[float | None]  # None, as a length: an import lacks it
    num_tokens: Sequence[int | None]
    rules: Sequence[dict[str, float | None]]  # each rule's score, before its weight
    texts: Sequence[str]

    @property
    def is_dead(self) -> bool:
        """Whether nothing is learnt from it: no advantage, or out of the batch."""
        if not any(advantage is not None for advantage in self.advantages):
            return not self.is_trained or self.signal != "mixed"
        return not self.is_trained or not any(self.advantages)


def from_event(event: GroupScored) -> StepGroup:
    completions = event.completions
    return StepGroup(
        prompt_index=event.prompt_index,
        reward_mean=event.reward_mean,
        reward_std=event.reward_std,
        signal=event.signal,
        is_trained=event.is_trained,
        rewards=[c.reward for c in completions],
        advantages=[c.advantage for c in completions],
        num_tokens=[c.num_tokens for c in completions],
        rules=[c.rules for c in completions],
        texts=[c.text for c in completions],
    )


def from_row(group: Group) -> StepGroup:
    completions = group.completions
    names = group.rule_names
    return StepGroup(
        prompt_index=group.prompt_index,
        reward_mean=group.reward_mean,
        reward_std=group.reward_std,
        signal=group.signal,
        is_trained=group.is_trained,
        rewards=[c.reward for c in completions],
        advantages=[c.advantage for c in completions],
        num_tokens=[c.num_tokens for c in completions],
        rules=[dict(zip(names, c.rule_scores, strict=False)) for c in completions],
        texts=[c.text for c in completions],
    )


def read_groups(
    run_id: int, *, step: int, epoch: int, before_seq: int | None = None
) -> list[StepGroup]:
    """Of one life of the run, in the order they came; two queries."""
    found = Group.objects.filter(run_id=run_id, step=step, epoch=epoch)
    if before_seq is not None:
        found = found.filter(seq__lt=before_seq)
    groups = found.defer("prompt", "answer").order_by("seq")
    return [from_row(each) for each in groups.prefetch_related("packed_completions")]
