"""Episodes as a trainer sends them."""

from typing import Any

from tests.dashboard.supervision.logs import LogBuilder, group
from trainer.events import CallRecord, GroupScored, ScoredCompletion, TurnRecord

MARK = "<|end|>\n"  # of the chat template, between two turns


def said(text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A turn, of the policy unless the fields tell another author."""
    return text, {"author": "policy", **fields}


def called(name: str, arguments: str, **fields: Any) -> dict[str, Any]:
    """The fields of a tool's turn that answers a call."""
    call = CallRecord(name=name, arguments=arguments, **fields)
    return {"author": "tool", "name": name, "calls": [call]}


def episode(
    *turns: tuple[str, dict[str, Any]], tokens: bool = True, **fields: Any
) -> ScoredCompletion:
    """A completion of these turns; each word is a token, and so is each mark."""
    text, at, num_policy, records = "", 0, 0, []
    for words, given in turns:
        num = len(words.split()) + 1
        at += num
        num_policy += num if given["author"] == "policy" else 0
        start = len(text)
        text += words + MARK
        records.append(
            TurnRecord(
                start=start,
                end=start + len(words),
                token_end=at if tokens else None,
                **given,
            )
        )
    reward = fields.pop("reward", 0.5)
    return ScoredCompletion(
        **{
            "text": text,
            "num_tokens": num_policy,
            "end_reason": "done",
            "reward": reward,
            "rules": {"environment": reward},
            "advantage": 0.0 if reward is None else reward - 0.5,
            "mean_logprob": -0.5,
            "turns": records,
            **fields,
        }
    )


HIT = episode(
    said("20", reward=0.5),
    said("+", author="environment", seconds=0.25),
    said("24", reward=1.0),
    said(".", author="environment", seconds=0.5),
    reward=1.0,
)
FAILED = episode(
    said("12"),
    end_reason="failed",
    reward=None,
    rules={"environment": None},
    advantage=None,
    errors={"environment": "The game is over."},
)
OUT_OF_TURNS = episode(
    said("Let me see."),
    said("12", seconds=1.5, **called("add", '{"a": 5, "b": 7}', result="12")),
    said("Now <b>that</b>."),
    said("No b.", seconds=0.5, **called("add", '{"a": 5}', error="No b.")),
    said("I give up."),
    end_reason="turns",
    reward=0.0,
)


def add_episodes(
    log: LogBuilder, step: int, *episodes: ScoredCompletion, index: int = 0
) -> LogBuilder:
    fields = group(index) | {"prompt": "5 24 ?", "completions": list(episodes)}
    return log.add(GroupScored, step=step, **fields)
