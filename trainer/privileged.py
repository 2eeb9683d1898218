"""Privileged context: what the reference reads beside a completion's prompt.

The reference then knows more than the policy, and is its teacher with the same weights:
by a column of the row (arXiv:2601.18734), or by another completion of the group that
succeeded (arXiv:2601.20802). The completion's tokens are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from trainer.config import ReferenceConfig, RunConfig
from trainer.data import PromptRenderer, Row
from trainer.rewards.rule import column_of
from trainer.rewards.scoring import without_special_tokens
from trainer.types import Group

# A prompt that the reference reads; None: the policy's, (): the reference is not asked.
ReferencePrompt = tuple[int, ...] | None


def check_context(
    rows: Iterable[Row],
    renderer: PromptRenderer,
    config: RunConfig,
    *,
    num_positions: int | None = None,
) -> None:
    """Refuse a column that no row has, and prompts that are too long with it, or that
    leave no room for a completion.

    Raises:
        ValueError: naming the column or the first row.
    """
    reference, limit = config.reference, prompt_limit(config, num_positions)
    if reference.context == "none":
        return
    is_column = reference.context == "column"
    contexts = [
        (row, column_text(row, reference.context_column) if is_column else "")
        for row in rows
    ]
    if is_column and not any(context for _, context in contexts):
        raise ValueError(
            f'No row has the column "{reference.context_column}" that '
            "reference.context_column names. Name a column of the dataset, or answer."
        )
    for row, context in contexts:
        ids = render(renderer, row, reference, context)
        if len(ids) > limit:
            raise ValueError(
                f"The teacher's prompt of row {row.index} (line {row.index + 1}) has "
                f"{len(ids):,} tokens; {limit:,} are allowed. Raise "
                "reference.max_prompt_tokens or drop the row."
            )


def reference_prompts(
    groups: Sequence[Group],
    renderer: PromptRenderer,
    config: RunConfig,
    *,
    num_positions: int | None = None,
) -> list[ReferencePrompt]:
    """Return what the reference reads before each completion, group after group."""
    reference, prompts = config.reference, list[ReferencePrompt]()
    if reference.context == "none":
        return [None for group in groups for _ in group.completions]
    limit = prompt_limit(config, num_positions)
    for group in groups:
        contexts = contexts_of(group, reference)
        read = {
            context: render(renderer, group.prompt.row, reference, context)
            for context in set(contexts)
        }
        prompts += [
            read[context] if len(read[context]) <= limit else () for context in contexts
        ]
    return prompts


def render(
    renderer: PromptRenderer, row: Row, reference: ReferenceConfig, context: str | None
) -> tuple[int, ...]:
    """Return the prompt with its context; () without one."""
    if context is None:
        return ()
    template = reference.context_template
    return renderer.token_ids(row, template=template, context=context)


def prompt_limit(config: RunConfig, num_positions: int | None) -> int:
    """Return the most tokens that a prompt with its context may have.

    Args:
        num_positions: tokens of the longest text that the model was made for.
    """
    positions = num_positions or 2**31
    return min(
        config.reference.max_prompt_tokens, positions - config.longest_completion
    )


def contexts_of(group: Group, reference: ReferenceConfig) -> list[str | None]:
    """Return the context of each completion; None where there is none.

    The best of the others with a reward of `context_threshold`, of equal ones the
    first.
    """
    if reference.context == "column":
        text = column_text(group.prompt.row, reference.context_column)
        return [text] * len(group.completions)
    rewards = [score.total for score in group.scores]
    ranked = sorted(
        (-reward, place)
        for place, reward in enumerate(rewards)
        if reward is not None and reward >= reference.context_threshold
    )
    # tokens that end a turn would end the user's
    texts = {
        place: without_special_tokens(
            group.completions[place].policy_text, group.prompt.special_tokens
        )
        for _, place in ranked[:2]
    }
    return [
        next((text for place, text in texts.items() if place != own), None)
        for own in range(len(rewards))
    ]


def column_text(row: Row, name: str) -> str | None:
    """Return a column of the row or its answer as text; None where it is empty."""
    value = column_of({"answer": row.answer, **row.columns}, name, None)
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
