"""The rule that uses reasoning-gym's scorers.

Task names are listed here, without importing the library. A test compares them with the
installed version and searches its scorers for any that evaluates text.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from trainer.rewards.extraction import ExtractionParams, extract, reply_of
from trainer.rewards.judge import JudgeFailed, ask
from trainer.rewards.rule import (
    Example,
    NotApplicable,
    Rule,
    Sample,
    Unscorable,
    column_of,
)

_EVALUATES = "its scorer runs the answer as Python code."

REFUSED_TASKS = {
    "binary_matrix": _EVALUATES,
    "bitwise_arithmetic": "its scorer runs the row's own text as Python code.",
    "composite": "it is a mixture of other tasks.",
    "countdown": _EVALUATES + " Use the Countdown rule instead.",
    "intermediate_integration": _EVALUATES,
    "n_queens": _EVALUATES,
    "number_sorting": _EVALUATES,
    "polynomial_multiplication": _EVALUATES,
    "puzzle24": _EVALUATES,
    "simple_integration": _EVALUATES,
    "spiral_matrix": _EVALUATES,
    "string_insertion": _EVALUATES,
}

TASKS = tuple(
    """
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf
    binary_alternation boxnet caesar_cipher calendar_arithmetic
    chain_sum circuit_logic codeio coin_flip color_cube_rotation complex_arithmetic
    count_bits count_primes course_schedule cryptarithm decimal_arithmetic
    decimal_chain_sum dice emoji_mystery family_relationships figlet_font
    fraction_simplification futoshiki game_of_life game_of_life_halting gcd
    graph_color group_anagrams gsm_symbolic isomorphic_strings jugs kakurasu
    knight_swap knights_knaves largest_island lcm leg_counting letter_counting
    letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku
    modulo_grid needle_haystack number_filtering number_format number_sequence
    palindrome_generation palindrome_partitioning path_star polynomial_equations
    pool_matrix power_function prime_factorization products propositional_logic
    quantum_lock ransom_note rearc rectangle_count rotate_matrix rotten_oranges
    rubiks_cube rush_hour self_reference sentence_reordering shortest_path
    simple_equations simple_geometry sokoban spell_backward string_manipulation
    string_splitting string_synthesis sudoku survo syllogism time_intervals
    tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting
    zebra_puzzles
    """.split()  # noqa: SIM905 - a list of 94 strings would take a page
)


_MAX_CHARACTERS = 20_000


class ReasoningGymParams(ExtractionParams):
    task: str = Field(
        description="Name of the reasoning-gym task, such as chain_sum.",
        json_schema_extra={"enum": list(TASKS)},
    )
    entry_column: str = Field(
        "entry",
        min_length=1,
        max_length=200,
        description="Column with the task's entry: question, answer and metadata.",
    )
    timeout_seconds: float = Field(
        5.0,
        ge=0.1,
        le=60,
        description="An answer that takes longer to check gets no score.",
        json_schema_extra={"unit": "seconds"},
    )

    @field_validator("task")
    @classmethod
    def _task_is_known(cls, task: str) -> str:
        if task in REFUSED_TASKS:
            raise ValueError(
                f'The task "{task}" cannot be used: {REFUSED_TASKS[task]} Choose '
                "another task."
            )
        if task not in TASKS:
            raise ValueError(
                f'reasoning-gym has no task "{task}". Choose one of: '
                f"{', '.join(TASKS)}."
            )
        return task


def score_puzzle(sample: Sample, params: ReasoningGymParams) -> float:
    """Give the scorer's value, cut to [0, 1]; many scorers give part of the credit."""
    entry = _entry(sample, params.entry_column)
    answer = extract(reply_of(sample, read_thinking=params.read_thinking), params)
    if answer is None or len(answer) > _MAX_CHARACTERS:
        return 0.0
    question = {"task": params.task, "entry": entry, "answer": answer}
    try:
        reply = ask("reasoning_gym", question, timeout_seconds=params.timeout_seconds)
    except JudgeFailed as error:
        raise Unscorable(str(error)) from error
    if "problem" in reply:
        raise NotApplicable(
            f'The scorer of "{params.task}" failed on column "{params.entry_column}" '
            f"of this row ({reply['problem']}). Choose the task that generated the "
            "rows."
        )
    return float(reply["score"])


def _entry(sample: Sample, column: str) -> dict[str, Any]:
    entry = column_of(sample.columns, column)
    if (
        isinstance(entry, dict)
        and "answer" in entry
        # None where many answers solve the task, and the scorer tries each.
        and isinstance(entry["answer"], str | None)
        and isinstance(entry.get("metadata"), dict)
    ):
        return entry
    raise NotApplicable(
        f'The row needs a column "{column}" with a reasoning-gym entry (question, '
        "answer, metadata). Generate the rows with the dataset generator, or name the "
        "right column in the rule."
    )


_ENTRY = {
    "question": "State the final answer to the following arithmetic problem: 4 + 3 =",
    "answer": "7",
    "metadata": {"expression": "4 + 3"},
}
_COLUMNS = {"entry": _ENTRY, "task": "chain_sum"}
RULE = Rule(
    kind="reasoning_gym",
    title="Reasoning task",
    summary="The task's scorer from reasoning-gym scores the answer.",
    params_model=ReasoningGymParams,
    score=score_puzzle,
    checks_task=True,
    example_pass=Example(
        sample=Sample("4 + 3 =", "<answer>7</answer>", "7", _COLUMNS),
        params={"task": "chain_sum"},
    ),
    example_fail=Example(
        sample=Sample("4 + 3 =", "<answer>8</answer>", "7", _COLUMNS),
        params={"task": "chain_sum"},
    ),
    is_slow=True,
)
