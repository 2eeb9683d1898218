"""The child behind `trainer.rewards.workers`: it judges what it is sent, in order."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainer.rewards.child import questions, send, take_over_stdout
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import judge
from trainer.rewards.spec import RuleSpec


def main() -> int:
    """A line when ready, and one for each part, until standard input ends.

    A part is a list of completions that are judged together: one alone, or a group.
    """
    replies = take_over_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    send(replies, {})
    for question in questions():
        rules = [RuleSpec.model_validate(rule) for rule in question["rules"]]
        for part in question["parts"]:
            send(replies, _reply(rules, [Sample(**fields) for fields in part]))
    return 0


def _reply(rules: Sequence[RuleSpec], samples: Sequence[Sample]) -> dict[str, Any]:
    try:
        return {"scores": [asdict(score) for score in judge(rules, samples)]}
    except Exception:  # noqa: BLE001 - the asker judges it itself, to meet it as it is
        return {"scores": None}


if __name__ == "__main__":
    sys.exit(main())
