"""A fake trainer that reports events at a fixed rate, by the real contract.

OUT EPOCH and a Pace as JSON. It tells its first step once OUT/go is there, so that
its listeners are connected too, and ends after the pace's number of steps.
"""

import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from trainer.events import (
    Event,
    GroupScored,
    RunFinished,
    RunStarted,
    ScoredCompletion,
    StepFinished,
)

GO = "go"
NAMES = (
    *("reward/mean", "reward/std", "reward/answer/mean", "group/std_mean"),
    *("group/frac_zero_std", "group/frac_all_max", "group/frac_all_min"),
    *("group/num_effective", "advantage/abs_mean", "kl/mean", "kl/p99", "kl/max"),
    *("entropy", "ratio/mean", "ratio/max", "clip/frac_low", "clip/frac_high"),
    *("loss", "grad_norm", "lr", "completion/mean_length"),
    *("completion/frac_truncated", "time/generate", "time/score", "time/logprobs"),
    *("time/update", "time/sync", "time/step", "tokens_per_second"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Amount and rate of events; a step is its groups and its end."""

    num_steps: int
    events_per_second: float
    num_groups: int = 0

    @property
    def seconds(self) -> float:
        return self.num_steps * (self.num_groups + 1) / self.events_per_second

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def metrics_of(step: int) -> dict[str, float | None]:
    chance = random.Random(step)
    return {name: chance.random() for name in NAMES}


def group_of(step: int, index: int) -> dict[str, object]:
    chance = random.Random(step * 1_000 + index)
    rewards = [float(chance.random() < 0.5) for _ in range(8)]
    mean = sum(rewards) / len(rewards)
    completions = [
        ScoredCompletion(
            text="so " * chance.randrange(40, 80),
            num_tokens=60,
            end_reason="stop",
            reward=reward,
            rules={"answer": reward},
            advantage=reward - mean,
            mean_logprob=-0.5,
        )
        for reward in rewards
    ]
    return {
        "prompt_index": index,
        "prompt": f"{step} + {index} =",
        "answer": str(step + index),
        "reward_mean": mean,
        "reward_std": (mean - mean**2) ** 0.5,
        "signal": {0.0: "all_wrong", 1.0: "all_right"}.get(mean, "mixed"),
        "completions": completions,
    }


class Teller:
    def __init__(self, out: Path, attempt: int) -> None:
        self._file = (out / "events.jsonl").open("ab")
        self._attempt = attempt
        self._line = 0

    def tell(self, kind: type[Event], *, step: int, **fields: object) -> None:
        """One line. Its time is taken just before it is written."""
        self._line += 1
        place = {"line": self._line, "attempt": self._attempt, "time": time.time()}
        event = kind.model_validate({**place, "step": step, **fields})
        self._file.write(event.model_dump_json().encode() + b"\n")
        self._file.flush()


def train(out: Path, attempt: int, pace: Pace) -> None:
    teller = Teller(out, attempt)
    teller.tell(
        RunStarted,
        step=0,
        num_steps=pace.num_steps,
        num_parameters=1_000_000,
        num_train_rows=8,
        num_eval_rows=0,
        device="cpu",
        versions={},
    )
    while not (out / GO).exists():
        time.sleep(0.05)
    begin, reported = time.monotonic(), 0

    def wait() -> None:
        nonlocal reported
        reported += 1
        due = begin + reported / pace.events_per_second
        time.sleep(max(0.0, due - time.monotonic()))

    for step in range(1, pace.num_steps + 1):
        for index in range(pace.num_groups):
            wait()
            teller.tell(GroupScored, step=step, **group_of(step, index))
        wait()
        teller.tell(StepFinished, step=step, metrics=metrics_of(step))
    teller.tell(RunFinished, step=pace.num_steps)


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), Pace(**json.loads(sys.argv[3])))
