from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = {
    "torch", "transformers", "django", "numpy", "sympy", "math_verify",
    "reasoning_gym", "psycopg", "redis",
}  # fmt: skip


@pytest.mark.parametrize(
    "module",
    [
        "trainer.rewards.scoring",
        "trainer.config",
        "trainer.events",
        "trainer.rewards.command",
    ],
)
def test_what_the_web_half_imports_brings_no_engine_and_no_django(module):
    code = (
        f"import {module}, sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    ).stdout.split()

    assert "pydantic" in loaded
    assert not HEAVY & set(loaded)
    assert "jsonschema" not in loaded  # a GPU machine may lack it


def test_every_rule_scores_without_torch_or_django_in_the_process():
    code = """
import sys
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import score_all
from trainer.rewards.spec import Recipe, RuleSpec, recipe_bounds
for kind, rule in RULES.items():
    if rule.batching is not None:  # it asks a model
        continue
    spec = RuleSpec(name="it", kind=kind, params=rule.example_pass.params)
    recipe = Recipe(rules=(spec,))
    score = score_all(recipe, rule.example_pass.group)[0]
    assert abs(score.total - recipe_bounds(recipe)[1]) < 1e-5, (kind, score)
print(*{name.split(".")[0] for name in sys.modules})
"""

    loaded = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    ).stdout.split()

    assert not HEAVY & set(loaded)
