"""Completions that solve nothing, made for a row. Pure functions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.rewards.spec import Recipe

# Options of a multiple choice are letters, and few.
MOST_LETTERS = 10
LETTER_SHARE = 0.9
THINK_TAG, ANSWER_TAG = "think", "answer"


@dataclass(frozen=True, slots=True)
class Trivial:
    """One way to say nothing, in forms of which one may suit a recipe better."""

    label: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tags:
    think: str
    answer: str

    def around(self, answer: str) -> str:
        return (
            f"<{self.think}>\n</{self.think}>\n<{self.answer}>{answer}</{self.answer}>"
        )


def trivial_completions(
    *, prompt: str, answers: Sequence[str], tags: Tags, seed: int
) -> list[Trivial]:
    """Those of one row; `answers` are those of the dataset's rows.

    The same kinds in the same order for each row of a dataset.
    """
    guesses = []
    if answers:
        guess, _ = Counter(answers).most_common(1)[0]
        guesses = [
            Trivial(
                f"the dataset's most frequent answer, “{_short(guess)}”",
                written(guess, tags),
            )
        ]
    letters = [
        Trivial(f"always the letter {letter}", written(letter, tags))
        for letter in choice_letters(answers)
    ]
    number = str(random.Random(seed).randint(0, 100))  # noqa: S311 - a repeatable guess
    return [
        Trivial("an empty completion", ("",)),
        Trivial("the prompt, said again", (prompt,)),
        Trivial("only tags, with nothing in them", (tags.around(""), _tight(tags))),
        *guesses,
        *letters,
        Trivial("a random number from 0 to 100", written(number, tags)),
    ]


def written(answer: str, tags: Tags) -> tuple[str, ...]:
    """An answer as recipes look for it: plain, tagged, boxed, behind a marker."""
    return (
        answer,
        tags.around(answer),
        f"\\boxed{{{answer}}}",
        f"#### {answer}",
    )


def choice_letters(answers: Sequence[str]) -> list[str]:
    """The options of a multiple choice; none where answers are something else."""
    letters = [answer.strip().upper() for answer in answers]
    single = [text for text in letters if len(text) == 1 and "A" <= text <= "Z"]
    kinds = sorted(set(single))
    is_choice = len(single) >= LETTER_SHARE * max(len(answers), 1)
    return kinds if is_choice and 2 <= len(kinds) <= MOST_LETTERS else []


def tags_of(recipe: Recipe) -> Tags:
    """The tags that the recipe's rules name, or the usual ones."""
    think = answer = ""
    for rule in recipe.rules:
        think = think or str(rule.params.get("think_tag") or "")
        answer = answer or str(
            rule.params.get("answer_tag") or rule.params.get("tag") or ""
        )
    return Tags(think or THINK_TAG, answer or ANSWER_TAG)


def _tight(tags: Tags) -> str:
    return f"<{tags.think}></{tags.think}><{tags.answer}></{tags.answer}>"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
