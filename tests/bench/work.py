"""What is measured: the same work for both, and what a step of it brought."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

BETA = 0.04
RATE = 1e-6  # both stay near the start, so that lengths agree


_HEROES = (
    "a fox",
    "a miller",
    "an old sailor",
    "a girl in red boots",
    "a giant",
    "a king",
)
_HOMES = ("by the sea", "in a tall tower", "at the end of the road", "under a bridge")
_DAYS = ("One morning", "On the first day of spring", "When the snow came", "At night")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What both do in a step."""

    model: Path
    rows: Path
    num_prompts: int
    group_size: int
    max_new_tokens: int
    beta: float = 0.0
    micro_batch_tokens: int = 8_192
    device: str = "cpu"
    dtype: str = "float32"
    lora_rank: int = 0
    recomputes: bool = False  # activations, in the backward pass
    mismatch: bool = True  # of sampler and trainer is logged

    @property
    def completions(self) -> int:
        return self.num_prompts * self.group_size

    @property
    def name(self) -> str:
        return (
            f"{self.num_prompts} × {self.group_size}, {self.max_new_tokens} new, "
            f"β {self.beta:g}"
        )


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of a step's prompts, and of each prompt's completions.

    >>> Lengths(prompts=(3,), groups=((2, 1),)).num_tokens
    3
    """

    prompts: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def num_tokens(self) -> int:
        """Completion tokens."""
        return sum(map(sum, self.groups))


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as it was measured."""

    seconds: float
    lengths: Lengths
    phases: dict[str, float] = field(default_factory=dict)  # seconds
    peak_bytes: int = 0  # of its process, from its beginning to this step's end

    @property
    def rate(self) -> float:
        """Completion tokens a second."""
        return self.lengths.num_tokens / self.seconds


def rates(steps: Sequence[Step]) -> list[float]:
    return [step.rate for step in steps]


def median_phase(steps: Sequence[Step], name: str) -> float:
    """Seconds; 0 where no step has the phase."""
    return statistics.median(step.phases.get(name, 0.0) for step in steps)


def write_rows(model: Path, folder: Path) -> Path:
    """The model's own rows, or for one without the beginnings of stories.

    Stories go on for as long as they may, so that both write as many tokens.
    """
    own = model.parent / "rows.jsonl"
    if own.is_file():
        return own
    path = folder / "rows.jsonl"
    with path.open("w") as file:
        for hero, home, day in product(_HEROES, _HOMES, _DAYS):
            story = f"Once upon a time there was {hero} who lived {home}. {day},"
            file.write(json.dumps({"prompt": story, "answer": "0"}) + "\n")
    return path
