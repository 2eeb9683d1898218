"""Record what the Tinker cookbook writes of two iterations, with its own writers.

    pip install tinker-cookbook==0.6.1 && python record_tinker.py tinker

The sampler is a stand-in. The HTML is left out, and the log is written without spaces.
"""

import asyncio
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tinker
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl import rollouts, train
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.rollout_logging import (
    RolloutSummaryGroup,
    serialize_rollout_summaries_from_groups,
)
from tinker_cookbook.stores.storage import LocalStorage
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.utils import logtree

FOLDER = Path(sys.argv[1])
rng = random.Random(4)


class Renderer:
    """A character is a token."""

    def build_generation_prompt(self, convo: Any) -> Any:
        return tinker.ModelInput.from_ints([ord(c) for c in convo[-1]["content"]])

    def get_stop_sequences(self) -> list[str]:
        return []

    def parse_response(self, action: list[int]) -> Any:
        ended = SimpleNamespace(is_stop_sequence=True, is_clean=True)
        return {"role": "assistant", "content": "".join(map(chr, action))}, ended


class Add(ProblemEnv):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(Renderer())
        self.a, self.b = a, b

    def get_question(self) -> str:
        return f"{self.a} + {self.b} ="

    def check_answer(self, text: str) -> bool:
        return str(self.a + self.b) in text

    def check_format(self, text: str) -> bool:
        return text.isdecimal()

    def get_reference_answer(self) -> str:
        return str(self.a + self.b)


class Policy(TokenCompleter):
    async def __call__(self, model_input: Any, stop: Any, **_: Any) -> Any:
        await asyncio.sleep(rng.random() / 50)
        prompt = "".join(map(chr, model_input.to_ints()))
        a, b = map(int, prompt.rstrip("= ").split(" + "))
        reply = rng.choice([str(a + b), f"It is {a + b}.", str(a + b + 1)])
        tokens = [ord(c) for c in reply]
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[-1.0] * len(tokens))


async def iterate(store: TrainingRunStore, number: int) -> None:
    builders = [
        ProblemGroupBuilder(
            env_thunk=lambda a=a: Add(a, number + 1), num_envs=3, dataset_name="add"
        )
        for a in (2, 3)
    ]

    async def roll_out(k: int) -> Any:
        with logtree.optional_enable_logging(k < 1):
            return await rollouts.do_group_rollout(builders[k], Policy())

    with train._get_logtree_scope(
        output_dir=FOLDER / f"iteration_{number:06d}",
        num_groups_to_log=1,
        f_name="train",
        scope_name="RL",
        iteration=number,
        store=store,
    ):
        groups = await asyncio.gather(*map(roll_out, range(2)))
    summaries = [
        RolloutSummaryGroup(trajectory_group=group, tags=builder.logging_tags())
        for group, builder in zip(groups, builders, strict=True)
    ]
    store.write_rollouts(
        number,
        serialize_rollout_summaries_from_groups(
            split="train", iteration=number, groups_P=summaries
        ),
    )
    store.write_metrics({"optim/lr": 4e-5, "time/total": 3.0}, step=number)


async def main() -> None:
    store = TrainingRunStore(LocalStorage(FOLDER))
    store.write_config({"model_name": "Qwen/Qwen3-8B", "learning_rate": 4e-5})
    for number in range(2):
        await iterate(store, number)


def shorten() -> None:
    for path in FOLDER.rglob("*.html"):
        path.unlink()
    for path in FOLDER.rglob("*_logtree.json"):
        path.write_text(json.dumps(json.loads(path.read_text()), separators=(",", ":")))


asyncio.run(main())
shorten()
