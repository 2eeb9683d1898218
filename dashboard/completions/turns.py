"""The turns of an episode, as pages show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

from django.utils.html import escape, format_html
from django.utils.safestring import SafeString

from dashboard.completions.flags import ENDS
from dashboard.completions.models import Completion, Group
from dashboard.completions.rendering import Rendered
from trainer.events import TurnRecord

# What is longer is folded: tools write pages.
SHOWN_LINES, SHOWN_CHARS = 6, 600
_ROLES = {"policy": "assistant", "environment": "user", "tool": "tool"}

Row = tuple[list["Block"], list["Block"]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A turn and its message, without what the chat template writes around it."""

    record: TurnRecord
    text: str
    round: int  # the turns of the policy so far, with this one
    num_tokens: int | None  # None: unknown
    rendered: Rendered | None = None

    @property
    def is_policy(self) -> bool:
        return self.record.author == "policy"

    @property
    def label(self) -> str:
        return self.record.name or self.record.author

    @property
    def shows_text(self) -> bool:
        """False for a tool's text that its calls repeat."""
        rest = self.text
        for call in self.record.calls:
            rest = rest.replace(call.result or call.error, "", 1)
        return not self.record.calls or bool(rest.strip())


def blocks_of(
    completion: Completion | Mapping[str, Any],
    limit: int | None = None,
    *,
    is_whole: bool = False,
) -> list[Block]:
    """Return the turns within the first `limit` characters; none: it is no episode,
    whose text is one turn if `is_whole`.

    A test of a model has completions as JSON.
    """
    if isinstance(completion, Completion):
        text, turns = completion.text, completion.turns
        if is_whole and not turns:
            turns = (
                TurnRecord(
                    author="policy",
                    start=0,
                    end=len(text),
                    token_end=completion.num_tokens,
                ),
            )
    else:
        text = completion["text"]
        turns = tuple(map(TurnRecord.model_validate, completion.get("turns", ())))
    shown = text[:limit]
    rounds = accumulate(int(turn.author == "policy") for turn in turns)
    begins = (0, *(turn.token_end for turn in turns))
    return [
        Block(
            record=turn,
            text=shown[turn.start : turn.end],
            round=number,
            num_tokens=None
            if begin is None or turn.token_end is None
            else turn.token_end - begin,
        )
        for turn, number, begin in zip(turns, rounds, begins, strict=False)
        if turn is turns[0] or turn.start < len(shown)
    ]


def messages_of(completion: Completion) -> str:
    """Return the text without what the chat template writes between turns."""
    return " ".join(block.text for block in blocks_of(completion, is_whole=True))


def transcript_of(completion: Completion) -> str:
    """Return the messages under their authors; of a single turn its text."""
    messages = (f"{block.label}: {block.text}" for block in blocks_of(completion))
    return "\n\n".join(messages) or completion.text


def pair_rows(ours: Completion | None, theirs: Completion | None) -> list[Row]:
    """Set turns of the policy beside each other, and the replies to them.

    No rows: neither is an episode.
    """
    if not any(c and c.turns for c in (ours, theirs)):
        return []
    sides = [blocks_of(c, is_whole=True) if c else [] for c in (ours, theirs)]
    rounds = range(1 + max(block.round for side in sides for block in side))
    rows = [
        tuple(
            [b for b in side if b.round == number and b.is_policy == is_policy]
            for side in sides
        )
        for number in rounds
        for is_policy in (True, False)
    ]
    return [(mine, its) for mine, its in rows if mine or its]


def preference_pair(group: Group, *pair: Completion) -> dict[str, Any]:
    """Return prompt, chosen and rejected as TRL reads them.

    The prompt has the turns that both begin with, and nothing follows the policy's last
    turn. They are messages where those of the prompt are stored, else texts.
    """
    sides = []
    for completion in pair:
        blocks = blocks_of(completion, is_whole=True)
        rounds = {0, *range(blocks[-1].round)}
        sides.append([b for b in blocks if b.is_policy or b.round in rounds])
    messages = [[_message(group, block) for block in blocks] for blocks in sides]
    same = takewhile(lambda two: two[0] == two[1], zip(*messages, strict=False))
    differing = max(block.round for block in sides[0][: len(list(same)) + 1])
    num_shared = sum(block.round < differing for block in sides[0])
    if group.messages:
        return {
            "prompt": [*group.messages, *messages[0][:num_shared]],
            "chosen": messages[0][num_shared:],
            "rejected": messages[1][num_shared:],
        }
    start = sides[0][num_shared].record.start if num_shared else 0
    chosen, rejected = (
        completion.text[start : blocks[-1].record.end]
        for completion, blocks in zip(pair, sides, strict=True)
    )
    return {
        "prompt": group.prompt + pair[0].text[:start],
        "chosen": chosen,
        "rejected": rejected,
    }


def _message(group: Group, block: Block) -> dict[str, str]:
    begun = "" if block.record.start else group.begun
    message = {"role": _ROLES[block.record.author], "content": begun + block.text}
    return message | ({"name": block.record.name} if block.record.name else {})


def fold(text: str) -> SafeString:
    """Show the first lines, and the others when they are asked for."""
    lines = text.splitlines(keepends=True)
    head = "".join(lines[:SHOWN_LINES])[:SHOWN_CHARS]
    rest = text[len(head) :]
    if not rest:
        return escape(text)
    is_cut = len(head) == SHOWN_CHARS  # within a line
    num, noun = (
        (len(rest), "character") if is_cut else (len(lines) - SHOWN_LINES, "line")
    )
    return format_html(
        '{}<details class="turn-fold"><summary>{} more {}{}</summary>{}</details>',
        head,
        f"{num:,}",
        noun,
        "" if num == 1 else "s",
        rest,
    )


def describe_end(reason: str) -> str:
    """Say why a completion ended; "": it is unknown."""
    return "" if reason == "unknown" else ENDS[reason].label


def token_turns(completion: Completion) -> str:
    """List author and end of each turn's tokens, as JSON; "": they are unknown."""
    turns = [
        (block.label, block.is_policy, block.record.token_end)
        for block in blocks_of(completion)
    ]
    return "" if any(end is None for *_, end in turns) else json.dumps(turns)
