"""The child behind `rewards.rules.reward_model`: it loads models, and scores."""

from __future__ import annotations

import resource
import sys
from typing import Any

import torch
import transformers

from trainer.host import num_cores
from trainer.model.classifier import Classifier, Settings
from trainer.rewards.child import questions, send, take_over_stdout
from trainer.tokenizers import first_line


def main() -> int:
    """A line when ready, and one for each question, until standard input ends."""
    replies = take_over_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # It computes while the trainer samples, which has most of the cores.
    torch.set_num_threads(max(1, num_cores() // 2))
    models: dict[Settings, Classifier] = {}
    send(replies, {})
    for question in questions():
        send(replies, _answer(question, models))
    return 0


def _answer(
    question: dict[str, Any], models: dict[Settings, Classifier]
) -> dict[str, Any]:
    settings = Settings(**question["settings"])
    try:
        if settings not in models:
            models[settings] = Classifier(settings)
        return {"scores": models[settings].scores(question["conversations"])}
    except torch.OutOfMemoryError as error:
        return {"problem": f"There is not enough memory for it: {first_line(error)}"}
    except RuntimeError:
        raise  # a GPU that failed fails this process from then on; another one may do
    except Exception as error:  # noqa: BLE001 - a model's files may hold anything
        return {"problem": str(error) or type(error).__name__}


if __name__ == "__main__":
    sys.exit(main())
