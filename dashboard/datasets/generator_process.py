"""The child process that runs a task's own code.

Users set the options, so a task may run forever or fill the memory; resource limits
end the process. The request is a JSON object on stdin. Each line of stdout is a JSON
object, and the last one has "done" or "refused".
"""

from __future__ import annotations

import inspect
import json
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any

from reasoning_gym import create_dataset
from reasoning_gym.factory import DATASETS

from dashboard.datasets.generators import describe_options

MAX_BYTES = 4 * 2**30
# One mixes other tasks, the other runs code snippets that it carries.
LEFT_OUT = frozenset({"composite", "codeio"})


def main() -> None:
    request = json.loads(sys.stdin.readline())
    seconds = int(request["seconds"])
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    replies = _generate(**request["rows"]) if "rows" in request else _describe()
    for reply in replies:
        sys.stdout.write(json.dumps(reply, default=str) + "\n")


def _describe() -> Iterator[dict[str, Any]]:
    for name in sorted(set(DATASETS) - LEFT_OUT):
        dataset, config = DATASETS[name]
        options = describe_options(config)
        # Its own words only: inspect.getdoc would take those of the base class.
        first = inspect.cleandoc(dataset.__doc__ or "").split("\n\n")[0]
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
        yield {"task": name, "summary": plain.removesuffix("."), "properties": options}
    yield {"done": True}


def _generate(
    *, task: str, size: int, seed: int, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    try:
        entries = create_dataset(task, size=size, seed=seed, **options)
        for number in range(size):
            yield {"entry": _plain(entries[number])}
    except Exception as error:  # noqa: BLE001 - a hundred tasks, each with its own ways to fail
        yield {"refused": str(error) or type(error).__name__}
        return
    yield {"done": True}


def _plain(value: Any) -> Any:
    """Convert the value to what JSON can say; scorers read the entry again."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner) for inner in value), key=str)
    # NumPy's scalars know their Python value.
    return value.item() if hasattr(value, "item") else value


if __name__ == "__main__":
    main()
