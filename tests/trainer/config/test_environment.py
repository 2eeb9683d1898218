"""Settings of environments, and what they cannot be together with."""

import pytest
from pydantic import ValidationError

from tests.trainer.scored import run_config
from trainer.config import EnvironmentConfig, RunConfig

GUESS = {"kind": "guess", "max_tokens": 2_000}
RULES = [{"name": "hit", "kind": "environment"}]


def config_of(**parts):
    environment = GUESS | parts.pop("environment", {})
    return run_config(environment=environment, **parts)


def test_a_run_has_no_environment_unless_it_is_chosen():
    config = run_config()

    assert not config.environment.is_there
    assert not config.runs_code
    assert config.longest_sequence == 512 + 256


def test_memory_is_planned_for_whole_episodes():
    config = config_of()

    assert config.longest_sequence == 2_000
    assert config.longest_completion == 2_000 - 512
    assert run_config().longest_completion == 256


@pytest.mark.parametrize(
    ("parts", "setting"),
    [
        ({"environment": {"max_tokens": 0}}, "environment.max_tokens"),
        ({"environment": {"max_tokens": 767}}, "768"),
        ({"data": {"rows": "-", "completion_prefix": "<think>"}}, "completion_prefix"),
        (
            {
                "advantage": {"credit": "preference"},
                "loss": {"surrogate": "reinforce"},
                "rollout": {"group_size": 2},
            },
            "advantage.credit",
        ),
    ],
)
def test_what_episodes_cannot_have_is_refused(parts, setting):
    with pytest.raises(ValidationError, match=setting):
        config_of(**parts)


def test_a_rule_that_reads_an_environment_needs_one():
    tree = run_config().model_dump()
    tree["reward"]["recipe"]["rules"] = RULES

    with pytest.raises(ValidationError, match=r"environment\.kind"):
        RunConfig.model_validate(tree)

    assert RunConfig.model_validate(tree | {"environment": GUESS})


@pytest.mark.parametrize("kind", ["environment", "turn_rewards"])
def test_a_rule_of_episodes_scores_no_step(kind):
    tree = config_of(advantage={"credit": "process"}).model_dump()
    steps = {"rules": [{"name": "turn", "kind": kind}]}
    tree["reward"]["step_recipe"] = steps
    with pytest.raises(ValidationError, match="whole episode"):
        RunConfig.model_validate(tree)
    tree["environment"] = {}
    with pytest.raises(ValidationError, match=r"environment\.kind"):
        RunConfig.model_validate(tree)


def test_rewards_of_turns_need_an_environment():
    tree = run_config().model_dump()
    tree["reward"]["recipe"]["rules"] = [{"name": "turns", "kind": "turn_rewards"}]

    with pytest.raises(ValidationError, match=r"environment\.kind"):
        RunConfig.model_validate(tree)


def test_credit_by_turn_needs_no_step_recipe():
    process = {"advantage": {"credit": "process"}}
    with pytest.raises(ValidationError, match="step_recipe"):
        run_config(**process)

    assert config_of(**process).reward.step_recipe is None


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"kind": "tools"}, "environment.tools"),
        ({"kind": "python"}, "environment.source"),
        ({"kind": "chess"}, "kind"),
        ({"kind": "guess", "max_turns": 0}, "max_turns"),
        ({"kind": "tools", "tools": ["python", "python"]}, "environment.tools"),
        ({"kind": "guess", "call_seconds": 601}, "call_seconds"),
    ],
)
def test_an_environment_says_what_it_lacks(fields, setting):
    with pytest.raises(ValidationError, match=setting):
        EnvironmentConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "runs_code"),
    [
        ({"kind": "guess"}, False),
        ({"kind": "countdown_calculator"}, False),
        ({"kind": "tools", "tools": ["calculator"]}, False),
        ({"kind": "tools", "tools": ["python"]}, True),
        ({"kind": "tools", "tools": ["add"], "source": "def add(): ..."}, True),
        ({"kind": "python", "source": "def reply(row, seed, said): ..."}, True),
        # a source that the kind does not read
        ({"kind": "guess", "source": "def add(): ..."}, False),
    ],
)
def test_a_sandbox_is_needed_where_code_runs(fields, runs_code):
    environment = EnvironmentConfig(**fields)

    assert environment.runs_code is runs_code
    config = run_config(environment={**fields, "max_tokens": 2_000})
    assert config.runs_code is runs_code


def test_phases_cannot_change_the_environment():
    with pytest.raises(ValidationError, match="environment"):
        run_config(
            optim={"num_steps": 2},
            phases=[{"name": "one", "num_steps": 2, "changes": {"environment": GUESS}}],
        )
