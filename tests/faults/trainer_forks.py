"""Trainers forked from a process that has loaded torch: a life takes a second.

Reads an order a line, {"argv", "log", "mishap", "env"}, and answers with the exit
status of the process that carried it out, negative for a signal. A mishap is
[NAME, ARGUMENT…] of `trainer_mishaps` and affects only that process.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main() -> None:
    import torch

    import trainer.run.run  # noqa: F401 - loaded once, for all that are forked
    from tests.faults import trainer_mishaps

    torch.set_num_threads(1)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _train(order, trainer_mishaps)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


def _train(order: dict[str, Any], mishaps: Any) -> None:
    from trainer.__main__ import main as trainer_main

    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(order["env"])
    status = 99
    try:
        if order["mishap"]:
            name, *arguments = order["mishap"]
            getattr(mishaps, name)(*arguments)
        status = trainer_main(order["argv"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
