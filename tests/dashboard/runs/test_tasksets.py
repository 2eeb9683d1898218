"""Tasksets of verifiers, whose code runs without a sandbox, and who may have one."""

import pytest

from dashboard.datasets.tokenizer_pool import refuse_environment, tokenizers
from dashboard.project.environment import read_environment
from dashboard.project.errors import UserError
from dashboard.runs.launch.base_models import lock_published

ENVIRONMENT = {"kind": "verifiers", "taskset": "reverse-text"}


@pytest.mark.parametrize("allowed", [(), ("other",), ("reverse",)])
def test_a_taskset_runs_nowhere_unless_an_operator_allows_it(team, settings, allowed):
    settings.TASKSETS = frozenset(allowed)

    with pytest.raises(UserError) as refused:
        lock_published(team, {"environment": ENVIRONMENT})
    answer = tokenizers.ask(
        team_id=team.pk, model="", question={"environment": ENVIRONMENT}
    )

    assert refused.value.code == "runs.bad_taskset"
    assert "COHORT_TASKSETS" in answer["problem"]


@pytest.mark.parametrize("allowed", [("*",), ("reverse-text", "other")])
def test_an_allowed_taskset_runs(team, settings, allowed):
    settings.TASKSETS = frozenset(allowed)

    lock_published(team, {"environment": ENVIRONMENT})

    assert refuse_environment(ENVIRONMENT) == ""


@pytest.mark.parametrize(
    "options",
    [
        {"id": "other"},
        {"system_prompt": "/etc/passwd"},
        {"runtime": {"type": "docker", "image": "other"}},
        {"task": {"rewards": {"own": {"fn": "/tmp/other.py:reward"}}}},
        {"task": {"judges": [{"id": "other"}]}},
        {"graders": [[{"judge": {"id": "other"}}]]},
    ],
)
def test_options_of_a_named_taskset_name_no_other_code(team, settings, options):
    environment = ENVIRONMENT | {"options": options}
    settings.TASKSETS = frozenset({"reverse-text"})

    with pytest.raises(UserError) as refused:
        lock_published(team, {"environment": environment})
    answer = tokenizers.ask(
        team_id=team.pk, model="", question={"environment": environment}
    )

    assert refused.value.code == "runs.bad_taskset"
    assert "COHORT_TASKSETS" in answer["problem"]
    settings.TASKSETS = frozenset({"*"})
    assert refuse_environment(environment) == ""


def test_options_of_a_named_taskset_are_data(settings):
    settings.TASKSETS = frozenset({"reverse-text"})
    options = {"prompt": "id", "words": ["fn"], "task": {"rewards": {"own": {}}}}

    assert refuse_environment(ENVIRONMENT | {"options": options}) == ""


def test_environments_in_the_sandbox_need_no_permission(team, settings):
    settings.TASKSETS = frozenset()

    for environment in ({"kind": "python", "source": "x"}, {"kind": "guess"}, {}):
        lock_published(team, {"environment": environment})
        assert refuse_environment(environment) == ""
    lock_published(team, {})


@pytest.mark.parametrize(
    ("hosts", "tasksets", "expected"),
    [
        ("", "", {"*"}),
        ("localhost", "", {"*"}),
        ("cohort.example.com", "", set()),
        ("cohort.example.com", "a, b", {"a", "b"}),
    ],
)
def test_a_server_that_others_reach_allows_no_taskset_by_itself(
    monkeypatch, hosts, tasksets, expected
):
    for name, value in (
        ("COHORT_ALLOWED_HOSTS", hosts),
        ("COHORT_TASKSETS", tasksets),
        ("COHORT_SECRET_KEY", "k" * 50),
    ):
        monkeypatch.setenv(name, value)

    assert read_environment().tasksets == expected
