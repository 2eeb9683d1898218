"""Tasksets of verifiers, whose code runs without a sandbox, and who may have one."""

from typing import Any

import pytest

from dashboard.accounts.models import Team
from dashboard.datasets.environments import Try, save_environment
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.splits import split_version
from dashboard.datasets.token_preview import preview_version
from dashboard.datasets.tokenizer_pool import refuse_environment, tokenizers
from dashboard.project.environment import read_environment
from dashboard.project.errors import UserError
from dashboard.runs.launch.base_models import lock_published, versions_of
from tests.dashboard.analysis.probes.factories import RECIPE, make_probe
from tests.dashboard.completions.factories import make_run, store_dataset
from tests.dashboard.jobs.working import do, take
from trainer.config import RunConfig

ENVIRONMENT = {"kind": "verifiers", "taskset": "reverse-text"}
TREE = {
    "model": {"path": "org/model"},
    "data": {"rows": "rows.jsonl", "num_eval_rows": 0},
    "reward": {"recipe": RECIPE},
    "rollout": {"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 12},
    "environment": ENVIRONMENT | {"max_tokens": 4_096},
}
HARM = {"idx": 0, "name": "x", "prompt": "hi", "collect": [{"command": "id"}]}
ROWS = [Row(prompt=f"hi {n}", columns={"task": HARM}) for n in range(6)]


@pytest.mark.parametrize("allowed", [(), ("other",), ("reverse",)])
def test_a_taskset_runs_nowhere_unless_an_operator_allows_it(team, settings, allowed):
    settings.TASKSETS = frozenset(allowed)

    with pytest.raises(UserError) as refused:
        lock_published(team, {"environment": ENVIRONMENT}, ())
    answer = tokenizers.ask(
        team_id=team.pk, model="", question={"environment": ENVIRONMENT}
    )

    assert refused.value.code == "runs.bad_taskset"
    assert "COHORT_TASKSETS" in answer["problem"]


@pytest.mark.parametrize("allowed", [("*",), ("reverse-text", "other")])
def test_an_allowed_taskset_runs(team, settings, allowed):
    settings.TASKSETS = frozenset(allowed)

    lock_published(team, {"environment": ENVIRONMENT}, ())

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
        {"task": {"judge": {"base_url": "http://inside", "prompt": "/etc/passwd"}}},
        {"task": {"grader": {"prompt": "key.txt"}}},
        {"env": "other", "provider_kwargs": {"a": 1}},
        {"mcp_servers": [{"command": "id"}]},
        {"registry_url": "x"},
        {"registry_path": "x"},
        {"repo": "x"},
        {"dataset": "x"},
        {"words": ["a", "../key"]},
    ],
)
def test_options_of_a_named_taskset_name_no_other_code(team, settings, options):
    environment = ENVIRONMENT | {"options": options}
    settings.TASKSETS = frozenset({"reverse-text"})

    with pytest.raises(UserError) as refused:
        lock_published(team, {"environment": environment}, ())
    answer = tokenizers.ask(
        team_id=team.pk, model="", question={"environment": environment}
    )

    assert refused.value.code == "runs.bad_taskset"
    assert "COHORT_TASKSETS" in answer["problem"]
    settings.TASKSETS = frozenset({"*"})
    assert refuse_environment(environment) == ""


def test_options_of_a_named_taskset_are_data(settings):
    settings.TASKSETS = frozenset({"reverse-text"})
    options = {
        "prompt": "id",
        "words": ["fn"],
        "share": 0.5,
        "system_prompt": "",
        "task": {"judges": [], "rewards": {"own": {"fn": None}}, "prompt": None},
    }

    assert refuse_environment(ENVIRONMENT | {"options": options}) == ""


@pytest.mark.parametrize("taskset", ["harbor", "openenv", "Nemo-Gym", "a/harbor@1"])
def test_a_taskset_that_runs_any_code_is_not_allowed_by_its_name(settings, taskset):
    environment = ENVIRONMENT | {"taskset": taskset}
    settings.TASKSETS = frozenset({taskset})

    assert "COHORT_TASKSETS to *" in refuse_environment(environment)
    settings.TASKSETS = frozenset({"*"})
    assert refuse_environment(environment) == ""


@pytest.fixture
def named(settings) -> None:
    settings.TASKSETS = frozenset({"reverse-text"})


@pytest.fixture
def uploaded(team) -> DatasetVersion:
    return store_dataset(team, ROWS, name="Uploaded", source={"kind": "upload"})


def make_tasks(team: Team, **source: Any) -> DatasetVersion:
    source = {"kind": "taskset", "task": "reverse-text", "options": {}, **source}
    return store_dataset(team, ROWS, name=f"Made {len(source)}", source=source)


def test_uploaded_rows_are_not_played_by_a_named_taskset(
    team, named, uploaded, settings
):
    config = RunConfig.model_validate(TREE)
    row = uploaded.rows.get(position=0)
    tried = Try({})

    tried.play(row, ENVIRONMENT, team=team)
    preview = preview_version(
        team,
        uploaded,
        model="org/model",
        row=0,
        data={},
        episodes={"environment": ENVIRONMENT},
    )
    with pytest.raises(UserError) as unsaved:
        save_environment(uploaded, ENVIRONMENT, user=None)
    with pytest.raises(UserError) as unlaunched:
        lock_published(team, {"environment": ENVIRONMENT}, [uploaded])
    with pytest.raises(UserError) as unprobed:
        make_probe(team, uploaded, config=config)

    reason = refuse_environment(ENVIRONMENT, [uploaded])
    assert "column task" in reason
    assert tried.reply["problem"] == preview.problem == reason
    assert unsaved.value.code == "datasets.taskset_refused"
    assert unlaunched.value.code == unprobed.value.code == "runs.bad_taskset"
    settings.TASKSETS = frozenset({"*"})
    assert refuse_environment(ENVIRONMENT, [uploaded]) == ""


def test_a_named_taskset_plays_rows_that_it_made_and_copies_of_them(team, named):
    made = make_tasks(team)

    save_environment(made, ENVIRONMENT | {"max_tokens": 64}, user=None)
    saved = made.dataset.versions.get(number=2)
    rule = {"by": "share", "share": 50, "seed": 2}
    split = split_version(
        saved, rule=rule, train_name="Train", eval_name="Held out", user=None
    )

    assert split.train
    assert split.eval
    versions = [made, saved, split.train, split.eval]
    assert saved.source["kind"] == "view"
    assert refuse_environment(ENVIRONMENT, versions) == ""
    make_probe(team, split.train, config=RunConfig.model_validate(TREE), positions=[0])
    made.content_sha256 = "0" * 64
    made.save()
    assert f"{saved}" in refuse_environment(ENVIRONMENT, [made, saved])
    made.dataset.versions.filter(number=1).delete()
    assert f"{saved}" in refuse_environment(ENVIRONMENT, [saved])


@pytest.mark.parametrize(
    "source",
    [
        {"task": "other"},
        {"options": {"repo": "other"}},
        {"kind": "generator"},
        {"kind": "run_import"},
        {"kind": "hub"},
    ],
)
def test_rows_of_another_taskset_or_of_other_code_are_not_played(team, named, source):
    version = make_tasks(team, **source)

    assert "column task" in refuse_environment(ENVIRONMENT, [version])


def test_evaluation_sets_of_a_run_are_rows_that_it_plays(team, uploaded):
    run = make_run(team, dataset_version=make_tasks(team))
    run.evaluation_sets.create(name="x", dataset_version=uploaded)

    assert [*versions_of(run)] == [run.dataset_version, uploaded]


def test_a_worker_probes_no_rows_that_are_not_allowed_any_more(
    team, uploaded, settings
):
    settings.TASKSETS = frozenset({"*"})
    config = RunConfig.model_validate(TREE)
    probe = make_probe(team, uploaded, config=config, positions=[0])
    settings.TASKSETS = frozenset({"reverse-text"})

    do(take("probe"))

    probe.refresh_from_db()
    assert probe.state == "failed"
    assert "column task" in probe.error


def test_environments_in_the_sandbox_need_no_permission(team, settings):
    settings.TASKSETS = frozenset()

    for environment in ({"kind": "python", "source": "x"}, {"kind": "guess"}, {}):
        lock_published(team, {"environment": environment}, ())
        assert refuse_environment(environment) == ""
    lock_published(team, {}, ())


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
