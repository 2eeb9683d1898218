"""The web half scores and reads configurations without an engine."""

import sys

import pytest

from tests.environment import run_here

HEAVY = {
    "torch", "transformers", "django", "numpy", "sympy", "math_verify",
    "reasoning_gym", "psycopg", "redis",
}  # fmt: skip
IN_CHILDREN = {"math_verify", "cosine_length", "reasoning_gym"}  # which take seconds
NAMES = "print(*{name.split('.')[0] for name in sys.modules})"
SCORE = """
import sys
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import score_all
from trainer.rewards.spec import Recipe, RuleSpec, recipe_bounds
for kind, rule in RULES.items():
    if rule.batching is not None:  # it asks a model
        continue
    if (kind in {in_children}) != {are_asked}:
        continue
    spec = RuleSpec(name="it", kind=kind, params=rule.example_pass.params)
    recipe = Recipe(rules=(spec,))
    score = score_all(recipe, rule.example_pass.group)[0]
    assert abs(score.total - recipe_bounds(recipe)[1]) < 1e-5, (kind, score)
"""


def loaded_by(code: str) -> set[str]:
    """The packages that a process which runs this has loaded."""
    done = run_here(sys.executable, "-c", f"import sys; {code}\n{NAMES}", check=True)
    return set(done.stdout.split())


def test_modules_shared_with_the_dashboard_import_no_torch_and_no_django():
    modules = "trainer.rewards.scoring, trainer.config, trainer.events"

    loaded = loaded_by(f"import {modules}, trainer.rewards.command")

    assert "pydantic" in loaded
    assert not HEAVY & loaded
    assert "jsonschema" not in loaded  # a GPU machine may lack it


@pytest.mark.parametrize(
    "are_asked", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_every_rule_scores_without_torch_or_django_in_the_process(are_asked):
    code = SCORE.replace("{in_children}", repr(IN_CHILDREN))

    loaded = loaded_by(code.replace("{are_asked}", repr(are_asked)))

    assert "trainer" in loaded
    assert not HEAVY & loaded
