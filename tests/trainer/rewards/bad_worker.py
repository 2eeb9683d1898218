"""A scoring process whose length rule does what the completion says."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.rewards import scoring_process
from trainer.rewards.rule import Sample
from trainer.rewards.rules import RULES

LENGTH = RULES["length"]


def misbehave(sample: Sample, params: Any) -> float:
    """Completions are "die", "hang" or "raise".

    Behind that may stand a file, which is made; where it is there already nothing is
    amiss.
    """
    word, _, file = sample.completion.partition(" ")
    if file and Path(file).exists():
        return LENGTH.score(sample, params)
    if file:
        Path(file).touch()
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "hang":
        time.sleep(3_600)
    if word == "raise":
        raise AssertionError("length gave nan")
    return LENGTH.score(sample, params)


if __name__ == "__main__":
    RULES["length"] = replace(LENGTH, score=misbehave)
    sys.exit(scoring_process.main())
