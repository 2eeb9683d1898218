"""What a process behind `trainer.rewards.child` does to answer."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Iterator
from typing import Any


def take_over_stdout() -> int:
    """Keep the pipe for replies; what a library prints goes nowhere."""
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return replies


def send(replies: int, reply: dict[str, Any]) -> None:
    data = json.dumps(reply).encode() + b"\n"
    while data:
        data = data[os.write(replies, data) :]


def questions() -> Iterator[dict[str, Any]]:
    """What is asked, until nobody is left to ask; in the middle of an answer too."""
    threading.Thread(target=_end_with_asker, daemon=True, name="asker").start()
    for line in sys.stdin.buffer:
        yield json.loads(line)


def _end_with_asker() -> None:
    """The kernel hangs up the pipe however the asker ends; reading is not needed."""
    poll = select.poll()
    poll.register(0, 0)  # a hang-up is told of unasked
    poll.poll()
    os._exit(0)
