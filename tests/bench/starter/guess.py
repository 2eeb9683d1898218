"""The starter's second task: find a number by higher and lower, in several turns.

A game is `5 24 ?` with a number to find. A text plays it: each guess is a turn, and
what the environment answers stands between them: 9<end>+14<end>-12<end>. The
warm-up's player guesses anywhere between the two numbers, whatever it was answered:
the model learns the form of the game, and rewards are to teach it to listen.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tests.bench.starter.countdown import Example, Report, Teaching, teach_texts

LARGEST = 40
SIZES = range(18, 31)  # how many numbers a game has
MAX_TURNS = 5


@dataclass(frozen=True, order=True)
class Game:
    """A number to find between two, both included."""

    lowest: int
    highest: int
    target: int

    @property
    def prompt(self) -> str:
        return f"{self.lowest} {self.highest} ?"

    @property
    def row(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "answer": str(self.target), "columns": {}}

    def answer(self, guess: int) -> str:
        if guess == self.target:
            return "."
        return "+" if guess < self.target else "-"


def all_games() -> list[Game]:
    """Every game, in order."""
    return [
        Game(lowest, lowest + size - 1, target)
        for size in SIZES
        for lowest in range(1, LARGEST - size + 2)
        for target in range(lowest, lowest + size)
    ]


def play_at_random(
    tokenizer: PreTrainedTokenizerBase,
    game: Game,
    chance: random.Random,
    *,
    listening: float = 0.0,
) -> Example:
    """A game as tokens; the guesses and their ends are taught.

    Args:
        listening: the share of guesses that agree with all answers so far.
    """
    assert isinstance(tokenizer.eos_token_id, int)
    ids = tokenizer.encode(game.prompt)
    taught = [False] * len(ids)
    lowest, highest = game.lowest, game.highest
    for _ in range(MAX_TURNS):
        if chance.random() < listening:
            guess = chance.randint(lowest, highest)
        else:
            guess = chance.randint(game.lowest, game.highest)
        turn = [*tokenizer.encode(str(guess)), tokenizer.eos_token_id]
        ids, taught = ids + turn, taught + [True] * len(turn)
        answer = game.answer(guess)
        ids, taught = ids + tokenizer.encode(answer), [*taught, False]
        if answer == ".":
            break
        if answer == "+":
            lowest = max(lowest, guess + 1)
        else:
            highest = min(highest, guess - 1)
    return ids, taught


def teach_game(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    games: Sequence[Game],
    *,
    teaching: Teaching,
    seed: int,
    report: Report,
) -> list[float]:
    """Teach the random player's games; returns the loss of each step."""

    def make_batch(step: int, chance: random.Random) -> list[Example]:
        chosen = chance.choices(games, k=teaching.batch_size)
        return [play_at_random(tokenizer, game, chance) for game in chosen]

    teaching = replace(teaching, mark_weight=1.0)
    return teach_texts(
        model, tokenizer, make_batch, teaching=teaching, seed=seed, report=report
    )
