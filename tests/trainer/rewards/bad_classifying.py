"""A process of reward models that dies of what a reply says."""

import os
import signal
import sys
from pathlib import Path

from trainer.rewards.child import questions, send, take_over_stdout


def main() -> int:
    """Behind "die" may stand a file, which is made; where it is, nothing is amiss."""
    replies = take_over_stdout()
    send(replies, {})
    for question in questions():
        for messages in question["conversations"]:
            word, _, file = messages[-1]["content"].partition(" ")
            is_there = bool(file) and Path(file).exists()
            if file:
                Path(file).touch()
            if word == "die" and not is_there:
                os.kill(os.getpid(), signal.SIGKILL)
        send(replies, {"scores": [0.5] * len(question["conversations"])})
    return 0


if __name__ == "__main__":
    sys.exit(main())
