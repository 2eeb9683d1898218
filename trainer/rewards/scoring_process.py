"""The child behind `trainer.rewards.workers`: it scores what it is sent, in order."""

from __future__ import annotations

import resource
import sys
from dataclasses import asdict
from typing import Any

from trainer.rewards.answering import questions, send, take_over_stdout
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import score_completion
from trainer.rewards.spec import Recipe


def main() -> int:
    """A line when ready, and one for each sample, until standard input ends."""
    replies = take_over_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    send(replies, {})
    for question in questions():
        recipe = Recipe.model_validate(question["recipe"])
        for fields in question["samples"]:
            send(replies, _reply(recipe, Sample(**fields)))
    return 0


def _reply(recipe: Recipe, sample: Sample) -> dict[str, Any]:
    try:
        return {"score": asdict(score_completion(recipe, sample))}
    except Exception:  # noqa: BLE001 - the asker scores it itself, to meet it as it is
        return {"score": None}


if __name__ == "__main__":
    sys.exit(main())
