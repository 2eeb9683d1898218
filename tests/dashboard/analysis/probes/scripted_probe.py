"""A scripted trainer of a probe (BEHAVIOUR FILE), by the contract of the real one."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def say(kind: str, **fields: Any) -> None:
    with Path(sys.argv[2]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"type": kind, **fields}) + "\n")


def group(row: int) -> None:
    texts = ["4", "no\x00 \ud800"]
    say(
        "group",
        row=row,
        completions=[
            {
                "text": text,
                "num_tokens": 1,
                "end_reason": "stop",
                "reward": 1.0,
                "rules": {"right": 1.0},
                "errors": {},
            }
            for text in texts
        ],
        usage={"judge": {"calls": 2, "input_tokens": 30}},
    )


def main() -> int:
    say("phase", name="sampling")
    group(0)
    say("progress", done=1, total=2)
    match sys.argv[1]:
        case "finish":
            group(1)
            say("progress", done=2, total=2)
            say("measured", metrics={"num_prompts": 2})
            return 0
        case "refuse":
            say("failed", error="900 tokens")
            return 2
        case "crash":
            sys.stderr.write("Segmentation fault, so to say\n")
            os.kill(os.getpid(), signal.SIGKILL)
        case "wait":
            is_stopped: list[int] = []
            signal.signal(signal.SIGTERM, lambda number, _: is_stopped.append(number))
            while not is_stopped:
                time.sleep(0.02)
            say("measured", metrics={"num_prompts": 1})
            return 3
    return 1


if __name__ == "__main__":
    sys.exit(main())
