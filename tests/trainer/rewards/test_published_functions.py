"""Reward functions in the published forms score as they do in plain Python."""

import asyncio
import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import django
import pytest

from tests.trainer.rewards.scores import recipe_of
from tests.trainer.scored import make_prompt
from trainer.config import RewardConfig
from trainer.rewards.rule import Sample
from trainer.rewards.sandbox.levels import LEVELS, obstacle, packages_here
from trainer.rewards.sandbox.limits import Limits
from trainer.rewards.sandbox.pool import sandbox_level
from trainer.rewards.sandbox.slot import Slot
from trainer.rewards.scoring import Score, score_all
from trainer.scoring import Scorer
from trainer.types import Rollout

TEXTS = [
    text
    for n in range(5)
    for text in (
        f"<think>{n}</think><answer>{n}</answer>",
        f"The result is \\boxed{{{n}}}.",
        f"#### {n}",
        "x" * n,
    )
]
assert len(TEXTS) == 20
CHAT = [
    {"role": "system", "content": "Answer with a number."},
    {"role": "user", "content": "What is 1 + 1?"},
]
COLUMNS = {"data_source": "openai/gsm8k", "extra_info": {"bonus": 0.25}, "level": 2}

TRL = r'''
import re

def accuracy_reward(prompts, completions, ground_truth, **kwargs):
    """Whether the boxed result is the right one."""
    matches = [re.search(r"\\boxed\{(.*?)\}", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in matches]
    return [1.0 if c == gt else 0.0 for c, gt in zip(contents, ground_truth)]
'''
TRL_CHAT = r"""
import re

def format_reward(completions, level, **kwargs):
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    assert completions[0][0]["role"] == "assistant" and kwargs["answer"]
    assert [m["role"] for m in kwargs["prompts"][0]] == ["system", "user"]
    return [(1.0 if re.match(pattern, c) else 0.0) / n for c, n in zip(contents, level)]
"""
TRL_MATH = """
from math_verify import parse, verify

async def math_reward(completions, solution, **kwargs):
    rewards = []
    for content, right in zip(completions, solution):
        gold = parse(f"${right}$")
        rewards.append(float(verify(gold, parse(content))) if gold else None)
    return rewards
"""
VERL = r"""
import re

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source != "openai/gsm8k":
        raise NotImplementedError(data_source)
    found = re.search(r"#### (\-?[0-9\.\,]+)", solution_str)
    if found is None:
        return {"score": 0.0, "acc": False, "pred": "none"}
    is_right = found.group(1).replace(",", "") == ground_truth
    return {"score": is_right + extra_info["bonus"], "acc": is_right, "pred": "some"}
"""
VERIFIERS = """
def exact_match(completion, answer, **kwargs) -> float:
    response = completion[-1]["content"]
    assert kwargs["state"]["prompt"] == kwargs["prompt"]
    return 1.0 if answer in response else 0.0
"""
VERIFIERS_ASYNC = """
import asyncio

async def length_bonus(completion, answer, info, state) -> float:
    await asyncio.sleep(0)
    assert state["answer"] == answer
    return min(len(completion) / info["longest"], 1.0)
"""


def plain(source: str, name: str) -> Callable[..., Any]:
    """The function itself, called by this process."""
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 - sources of this file
    function = names[name]

    def call(**arguments: Any) -> Any:
        taken = inspect.signature(function).parameters
        rest = any(each.kind is each.VAR_KEYWORD for each in taken.values())
        given = arguments if rest else {k: arguments[k] for k in taken}
        value = function(**given)
        return asyncio.run(value) if inspect.isawaitable(value) else value

    return call


def samples(
    texts: Sequence[str] = TEXTS,
    *,
    is_chat: bool = False,
    answer: str | list[str] | None = "2",
    columns: dict[str, Any] | None = None,
    **others: Any,
) -> list[Sample]:
    given = COLUMNS if columns is None else columns
    messages = CHAT if is_chat else CHAT[1:]
    return [
        Sample(
            "<s>What is 1 + 1?",
            text,
            answer,
            given,
            messages=messages,
            is_chat=is_chat,
            **others,
        )
        for text in texts
    ]


def scored(source: str, given: list[Sample], **params: Any) -> list[Score]:
    limits = {"minimum": -9, "maximum": 9}
    return score_all(
        recipe_of("python_function", source=source, **limits | params), given
    )


def totals(source: str, given: list[Sample], **params: Any) -> list[float | None]:
    found = scored(source, given, **params)
    assert {text for score in found for text in score.errors.values()} <= {
        "The reward function returned None: it does not apply to this row."
    }
    return [score.total for score in found]


@pytest.mark.parametrize(
    ("source", "name", "is_chat", "truth"),
    [
        (TRL, "accuracy_reward", False, "ground_truth"),
        (TRL_CHAT, "format_reward", True, "answer"),
        (TRL_MATH, "math_reward", False, "solution"),
    ],
)
def test_a_trl_function_scores_as_in_plain_python(source, name, is_chat, truth):
    call = plain(source, name)
    turns = [[{"role": "assistant", "content": text}] for text in TEXTS]

    expected = call(
        prompts=[CHAT if is_chat else CHAT[1]["content"]] * 20,
        completions=turns if is_chat else TEXTS,
        level=[2] * 20,
        **{truth: ["2"] * 20},
    )

    assert totals(source, samples(is_chat=is_chat)) == expected
    assert len(set(expected)) > 1


def test_a_verl_function_scores_as_in_plain_python():
    call = plain(VERL, "compute_score")
    expected = [
        call(
            data_source="openai/gsm8k",
            solution_str=text,
            ground_truth="2",
            extra_info={"bonus": 0.25},
        )
        for text in TEXTS
    ]

    found = scored(VERL, samples())

    assert [score.total for score in found] == [each["score"] for each in expected]
    assert [score.metrics for score in found] == [
        {"it": {"acc": float(each["acc"])}} for each in expected
    ]
    assert {score.total for score in found} == {0.0, 0.25, 1.25}


@pytest.mark.parametrize(
    ("source", "name", "is_chat"),
    [
        (VERIFIERS, "exact_match", True),
        (VERIFIERS_ASYNC, "length_bonus", False),
        (VERIFIERS.replace("def exact", "async def exact"), "exact_match", True),
    ],
)
def test_a_verifiers_function_scores_as_in_plain_python(source, name, is_chat):
    call = plain(source, name)
    expected = []
    for text in TEXTS:
        turn = [{"role": "assistant", "content": text}] if is_chat else text
        prompt = CHAT if is_chat else CHAT[1]["content"]
        known = {"prompt": prompt, "answer": "2", "info": {"longest": 20}}
        known["completion"] = turn
        expected.append(call(**known, state=known))

    found = totals(source, samples(is_chat=is_chat, columns={"info": {"longest": 20}}))

    assert found == expected
    assert len(set(expected)) > 1


def test_a_trl_function_gets_the_columns_it_takes():
    every = "def f(completions, **kwargs):\n print(*sorted(kwargs))\n return [1, 1]"
    some = "def f(completions, level):\n print(level)\n return [1, 1]"
    alias = (
        "def f(completions, solution, target):\n"
        " print(solution, target)\n return [1, 1]"
    )
    given = samples(["a", "b"], columns={"level": 2, "target": 7, "completion": "x"})

    assert scored(every, given)[0].logs == {
        "it": "answer level log_extra log_metric prompts target\n"
    }
    assert scored(some, given)[0].logs == {"it": "[2, 2]\n"}
    assert scored(alias, given)[0].logs == {"it": "['2', '2'] [7, 7]\n"}


def test_a_column_that_is_missing_makes_the_function_not_applicable():
    found = scored("def f(completions, level): ...", samples(["a"], columns={}))

    assert found[0].not_applicable == ["it"]
    assert "level" in found[0].errors["it"]


def test_a_trl_functions_log_extra_and_metrics_are_kept():
    source = (
        "def f(completions, log_extra, log_metric, **kwargs):\n"
        " log_extra('size', [len(c) for c in completions])\n"
        " log_metric('longest', 3)\n log_metric('longest', 5)\n"
        " return [0.5, None, 1]"
    )

    first, second, third = scored(source, samples(["a", "bb", "ccc"]))

    assert [first.total, second.total, third.total] == [0.5, None, 1.0]
    assert second.not_applicable == ["it"]
    assert first.metrics == {"it": {"longest": 4.0}}
    assert first.logs == {"it": "size: [1, 2, 3]\n"}
    assert (third.metrics, third.logs) == ({}, {})


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("return [1.0]", "1 numbers for 2"),
        ("return 1.0", "a float"),
        ("return 'ab'", "a str"),
        ("raise KeyError('gone')", "KeyError: 'gone' (line 2)"),
        ("while True: pass", "0.4 s"),
        ("import os; os._exit(0)", "without a result"),
    ],
)
def test_a_trl_function_that_fails_makes_its_group_unscorable(body, word):
    params = {"timeout_seconds": 0.2 if "while" in body else 5}

    found = scored(
        f"def f(completions, **kwargs):\n {body}", samples(["a", "b"]), **params
    )

    assert [score.total for score in found] == [None, None]
    assert [score.failed for score in found] == [["it"], ["it"]]
    assert all(word in score.errors["it"] for score in found)


def test_a_bad_reward_is_that_of_its_completion_alone():
    source = "def f(completions, **kwargs): return ['x', 99, float('nan'), 1]"

    found = scored(source, samples(list("abcd")))

    assert [score.total for score in found] == [None, None, None, 1.0]
    assert "a str" in found[0].errors["it"]
    assert "between" in found[1].errors["it"]
    assert "nan" in found[2].errors["it"]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("def f(solution_str, ground_truth): return {'acc': 1}", "without a score"),
        ("def f(solution_str, ground_truth): return [1]", "a list"),
        ("async def f(completion): raise ValueError('no')", "ValueError: no (line 1)"),
        ("def f(completion): return 1j", "a complex"),
    ],
)
def test_other_functions_that_fail_say_why(source, word):
    (found,) = scored(source, samples(["a"]))

    assert found.failed == ["it"]
    assert word in found.errors["it"]


FORGED = """
import json, os, struct

def f({parameter}, **kwargs):
    message = json.dumps({reply}).encode()
    os.write(4, struct.pack("<I", len(message)) + message)
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("parameter", "reply"),
    [
        ("completions", "{'values': [1]}"),
        ("completions", "{'values': 1}"),
        ("completions", "{'value': 1}"),
        ("completions", "{'values': [{'error': 1, 'x': 2}, [1]]}"),
        ("completions", "{'values': [float('inf'), True]}"),
        ("solution_str", "{'value': 10 ** 400}"),
        ("solution_str", "{'value': 1, 'more': 1}"),
        ("completion", "[1]"),
    ],
)
def test_a_forged_reply_gives_no_score(parameter, reply):
    source = FORGED.replace("{parameter}", parameter).replace("{reply}", reply)

    found = scored(source, samples(["a", "b"]))

    assert [score.total for score in found] == [None, None]
    assert [score.failed for score in found] == [["it"], ["it"]]


def test_forged_metrics_are_cut_to_finite_numbers_by_plain_names():
    metrics = "{'a/b': 1, 'c': float('inf'), 'd': 'x', 'e': True, 'f' * 99: 2, '': 3}"
    reply = (
        f"{{'value': 1, 'metrics': {metrics} | {{f'm{{n}}': n for n in range(99)}}}}"
    )
    source = FORGED.replace("{parameter}", "solution_str").replace("{reply}", reply)

    (found,) = scored(source, samples(["a"]))

    assert found.metrics["it"] == {
        "a_b": 1.0,
        "f" * 60: 2.0,
        **{f"m{n}": float(n) for n in range(18)},
    }


def test_numbers_of_other_types_are_scores():
    source = (
        "import numpy as np\nfrom fractions import Fraction\n"
        "def f(completions, **kwargs):\n"
        " return np.array([0.5, 1], np.float32) if len(completions) == 2 else "
        "[np.bool_(True), np.int64(2), Fraction(1, 4)]"
    )

    assert totals(source, samples(["a", "b"])) == [0.5, 1.0]
    assert totals(source, samples(["a", "b", "c"])) == [1.0, 2.0, 0.25]


def test_verls_own_columns_hold_the_truth_where_the_row_has_no_answer():
    source = (
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        " print(data_source, ground_truth, extra_info)\n return 1"
    )
    own = {"reward_model": {"style": "rule", "ground_truth": "7"}}

    (found,) = scored(source, samples(["a"], answer=None, columns=own))

    assert found.logs == {"it": "None 7 {}\n"}


@pytest.mark.parametrize(
    ("source", "given"),
    [
        ("def f(completions, answer):\n print(answer)\n return [1]", [["2", "two"]]),
        ("def f(completion, answer):\n print(answer)\n return 1", ["2", "two"]),
        (
            "def f(solution_str, ground_truth):\n print(ground_truth)\n return 1",
            ["2", "two"],
        ),
    ],
)
def test_several_answers_arrive_as_a_list(source, given):
    (found,) = scored(source, samples(["a"], answer=["2", "two"]))

    assert found.logs == {"it": f"{given}\n"}


def test_only_the_named_function_of_a_source_is_called():
    source = TRL + VERIFIERS_ASYNC

    found = scored(
        source,
        samples(["\\boxed{2}"], columns={"info": {"longest": 9}}),
        function="length_bonus",
    )

    assert found[0].total == 1.0


READS_IDS = (
    "def f(completions, completion_ids, **kw): return list(map(sum, completion_ids))"
)


def test_functions_get_the_sampled_token_ids():
    rollouts = [
        Rollout.of_one_turn(
            text=text, token_ids=ids, logprobs=(0.0,) * len(ids), end_reason="stop"
        )
        for text, ids in (("a", (1, 2)), ("b", (4,)))
    ]
    recipe = recipe_of("python_function", source=READS_IDS, maximum=9)
    with closing(Scorer(1)) as scorer:
        scoring = scorer.begin([make_prompt(0)], RewardConfig(recipe=recipe))
        scoring.add(0, rollouts)
        (group,) = scoring.finish([rollouts])

    assert [score.total for score in group.scores] == [3.0, 4.0]


def test_token_ids_that_no_one_knows_are_refused_where_they_are_read():
    reads = scored(READS_IDS, samples(["a"]))[0]
    names = scored(
        "def f(completions, completion_ids, trainer_state, **kw): return [1]",
        samples(["a"]),
    )[0]

    assert reads.failed == ["it"]
    assert "completion_ids" in reads.errors["it"]
    assert names.total == 1.0


def test_a_worker_calls_a_group_function_as_this_process_does():
    recipe = recipe_of("python_function", source=TRL_CHAT)
    given = samples(is_chat=True)
    with closing(Scorer(1)) as scorer:
        found = scorer.submit(recipe, given, name="row 0")()

    assert found.scores == score_all(recipe, given)


IMPORTS = """
import importlib
def reward(columns):
    importlib.import_module(columns["name"])
    return 1.0
"""


def test_the_listed_packages_can_be_imported():
    packages = packages_here(sandbox_level())
    assert {"numpy", "sympy", "math_verify", "regex"} <= packages.keys()
    source = "import numpy\n" + IMPORTS

    for name in packages:
        (found,) = scored(source, samples(["a"], columns={"name": name}))
        assert found.total == 1.0, (name, found.errors)
    for name in ("torch", "django", "pydantic", "scipy", "yaml"):
        (found,) = scored(source, samples(["a"], columns={"name": name}))
        assert "ModuleNotFoundError" in found.errors["it"], name


@pytest.mark.parametrize("level", LEVELS)
def test_packages_are_loaded_at_each_level_and_nothing_else_can_be_read(level):
    if (reason := obstacle(level)) is not None:
        pytest.skip(reason)
    neighbours = [django.__file__, os.path.realpath(django.__file__), __file__]
    slot = Slot(level, packages=("math_verify", "numpy"))
    source = (
        "import sys\nloaded = {'numpy', 'math_verify', 'sympy'} <= sys.modules.keys()\n"
        "import numpy, os\nfrom math_verify import parse, verify\n"
        "def reward():\n"
        f" for path in {neighbours}:\n"
        "  try: open(path)\n"
        "  except OSError: continue\n"
        "  return -1.0\n"
        " assert loaded and numpy.linalg.det(numpy.eye(3)) == 1.0\n"
        " return float(verify(parse(r'$\\frac{1}{2}$'), parse('0.5')))"
    )
    question = {"source": source, "arguments": {}}

    answer = slot.ask("function", [question], Limits())
    slot.end()

    assert answer.replies == (b'{"value": 1.0}',), answer.stderr


def test_code_without_packages_cannot_import_them():
    (found,) = scored(IMPORTS, samples(["a"], columns={"name": "numpy"}))

    assert "ModuleNotFoundError" in found.errors["it"]
