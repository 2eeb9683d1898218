"""A function of the user's own as a rule."""

import pytest

from tests.trainer.rewards.scores import recipe_of, score, scored
from trainer.rewards.rule import Unscorable
from trainer.rewards.rules import RULES
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.slot import SandboxStatus


def found(source: str, **params):
    return scored(
        "python_function", "two words", "yes", {"n": 3}, source=source, **params
    )


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("def reward(completion): return len(completion.split()) / 2", 1.0),
        (
            "def reward(prompt, answer): return prompt + answer == 'a promptyes'",
            1,
        ),
        ("def reward(columns, **rest): return columns['n'] / 6 * len(rest) / 3", 0.5),
        ("reward = lambda completion, k=0.25: k", 0.25),
        ("import math\ndef reward(): return math.cos(0)", 1.0),
    ],
)
def test_a_functions_result_is_the_score(source, value):
    assert found(source).total == value


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def reward(): return None", "returned None"),
        ("def reward(): return 'x'", "a str, not"),
        ("def reward(): return float('nan')", "returned nan"),
        ("def reward(): return 3", "between 0 and 1"),
        ("def reward(): return 1 / 0", "by zero (line 1)"),
        ("def reward(:", "SyntaxError"),
        ("reward = None", "no function named reward"),
        ("def reward(score): pass", "parameter score"),
        ("def reward():\n while True: pass", "0.3 s"),
        ("def reward(): return bytearray(2**30)", "MemoryError"),
        ("import os\ndef reward(): os._exit(0)", "without a result"),
        ("import os\ndef reward(): os._exit(3)", "code 3"),
        ("def reward(): exit(0)", "SystemExit"),
        ("def reward(): return reward()", "RecursionError"),
    ],
)
def test_an_invalid_result_explains_why(source, words):
    score = found(source, timeout_seconds=0.3 if "while" in source else 5)

    assert score.total is None
    assert words in score.errors["it"]
    assert bool(score.failed) == (words != "returned None")  # which is its own choice


def test_a_function_gets_several_answers_as_a_list():
    source = (
        "def reward(completion, answer): return (completion in answer) / len(answer)"
    )

    score = scored("python_function", "b", ["a", "b"], source=source)

    assert score.total == 0.5


def test_a_functions_output_is_kept():
    score = found(
        "import sys\ndef reward():\n print('é\\0')\n print('x', file=sys.stderr)"
    )

    assert score.logs == {"it": "é\N{REPLACEMENT CHARACTER}\nx\n"}


def test_the_beginning_of_much_output_is_kept():
    log = found("def reward():\n print('x' * 99_999)\n return 1").logs["it"]

    assert len(log) < 66_000
    assert "65,536 of 100,000 bytes" in log


def test_an_error_leaves_its_traceback_in_the_log():
    log = found("def reward():\n return [][1]").logs["it"]

    assert "IndexError" in log
    assert "line 2, in reward" in log


def test_a_recipe_without_a_named_function_is_the_text_that_it_was():
    source = "def reward(completion): return 1"
    unnamed = recipe_of("python_function", source=source, function="")
    named = recipe_of("python_function", source=source, function="reward")

    assert "function" not in unnamed.model_dump(mode="json")["rules"][0]["params"]
    assert named.model_dump(mode="json")["rules"][0]["params"]["function"] == "reward"


@pytest.mark.parametrize(
    "params",
    [
        {"source": "def r(): pass"},
        {"source": "def rewards(): pass  # no reward"},
        {"source": "def reward(): pass", "function": "r"},
        {"source": "def f(completion): ...\ndef g(completion): ..."},
        {"minimum": 1, "maximum": 1},
        {"timeout_seconds": 61},
    ],
)
def test_parameters_that_cannot_be_are_refused(params):
    with pytest.raises(ValueError, match='Rule "it"'):
        recipe_of("python_function", **params)


@pytest.mark.parametrize("kind", ["python_function", "code_tests"])
def test_without_a_sandbox_no_score_is_given(kind, monkeypatch):
    nothing = SandboxStatus(level=None, reasons={"A": "no bwrap", "B": "no Landlock"})
    monkeypatch.setattr(pool, "find_sandbox", lambda **_: nothing)
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    sample = RULES[kind].example_pass.sample

    score = scored(kind, sample.completion, sample.answer, dict(sample.columns))

    assert score.total is None
    assert "B: no Landlock" in score.errors["it"]
    assert RULES["python_function"].needs_sandbox


def test_half_a_character_in_an_error_is_replaced():
    source = (
        "import json\ndef reward(completion):\n"
        """    raise ValueError("from " + json.loads('"\\\\ud83d"'))"""
    )

    assert "from \ufffd" in found(source).errors["it"]
    assert str(Unscorable("a\ud83d\U0001f600")) == "a\ufffd\U0001f600"


@pytest.mark.parametrize(
    "first", ["", "\ufeff", "from __future__ import annotations\n"]
)
def test_a_function_may_use_a_dataclass(first):
    source = f"""{first}from dataclasses import dataclass
@dataclass
class Config:
    weight: float = 0.5
def f(completions, **kwargs) -> float:
    return [Config().weight for _ in completions]
"""

    assert score("python_function", "x", source=source, function="f") == 0.5


ABSENT = """
import torch_absent.nn as nn, math
from torch_absent import Tensor
@nn.no_grad()
def unused(texts: nn.Tensor): ...
class Head(nn.Module): ...
try:
    import torch_absent
except ImportError:
    absent = 0.25
"""


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("return absent", 0.25),
        ("return math.sqrt(absent)", 0.5),
        ("return nn.functional.x", None),
        ("return Tensor(1)", None),
        ("import torch_absent", None),
        ("return isinstance(completion, Tensor)", None),
        ("return unused(completion)", None),
        ("return Head()", None),
    ],
)
def test_an_absent_module_fails_where_it_is_used(body, value):
    source = f"{ABSENT}\ndef reward(completion: nn.Tensor, answer): {body}"

    score = found(source)

    assert score.total == value
    if value is None:
        assert "torch_absent" in score.errors["it"]
        assert "line 12" in score.errors["it"]


def test_a_function_whose_decorator_is_absent_has_no_score_and_names_the_module():
    source = "import torch_absent\n@torch_absent.no_grad()\n"

    score = found(f"{source}def reward(completion, answer): return 1.0")

    assert score.total is None
    assert "torch_absent" in score.errors["it"]
