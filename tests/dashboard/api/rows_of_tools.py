"""A team's things, and by tool the arguments that are valid for them."""

from typing import Any

from dashboard.accounts.models import Team, User
from dashboard.runs.models import RunState, Sweep, TeamPreset
from tests.dashboard.analysis.questions.factories import ask, store_answers
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.analysis.rescoring.factories import make_scored_run, start
from tests.dashboard.completions.factories import make_run, make_steps
from tests.dashboard.runs.launching import make_dataset, make_recipe

RULE = {"name": "right", "kind": "numeric_answer", "weight": 1.0}


def make_things(team: Team, user: User, name: str) -> dict[str, int]:
    """Make one of each thing that a tool names; each has the name."""
    dataset, recipe = make_dataset(team, name), make_recipe(team, name)
    sweep = Sweep.objects.create(team=team, name=name)
    run = make_scored_run(
        team, name=name, num_steps=1, version=dataset, sweep=sweep, tags=[name]
    )
    make_steps(run, {"reward/mean": [0.1, 0.2, 0.3]})
    queued = make_run(
        team, name, state=RunState.QUEUED, dataset_version=dataset, sweep=sweep
    )
    team.published_models.create(
        name=name, run=run, run_name=name, step=1, sha256="ab" * 32, num_bytes=1
    )
    preset = TeamPreset.objects.create(team=team, name=name, config={})
    make_report(team, user, "::table runs=1", name)
    asked = ask(run, sample_size=20)
    store_answers(asked)
    return {
        "run": run.pk,
        "queued": queued.pk,
        "dataset": dataset.pk,
        "recipe": recipe.pk,
        "sweep": sweep.pk,
        "preset": preset.pk,
        "question": asked.pk,
        "rescoring": start(run).pk,
    }


def rows_of_tools(things: dict[str, int]) -> list[tuple[str, dict[str, Any]]]:
    run, row = things["run"], {"dataset": things["dataset"], "row": 2, "texts": ["3"]}
    launch = {"model": "org/model", "dataset": things["dataset"]}
    launch |= {"recipe": things["recipe"], "settings": {"optim.num_steps": 7}}
    return [
        ("find_runs", {}),
        ("get_run", {"run": run}),
        ("get_metrics", {"run": run, "names": ["reward/mean"]}),
        ("search_completions", {"run": run, "rule": "right"}),
        ("compare_runs", {"runs": [run, things["queued"]]}),
        ("list_inputs", {"kind": "preset"}),
        ("list_inputs", {"kind": "model"}),
        ("list_inputs", {"kind": "dataset"}),
        ("list_inputs", {"kind": "recipe"}),
        ("try_reward", {"recipe": things["recipe"], **row}),
        ("try_reward", {"spec": {"rules": [RULE]}, **row}),
        ("try_reward", {"recipe": things["recipe"], "run": run, "step": 1,
                        "prompt": 0}),
        ("get_analysis", {"kind": "audit", "id": run}),
        ("get_analysis", {"kind": "rescoring", "id": things["rescoring"]}),
        ("get_analysis", {"kind": "sweep", "id": things["sweep"]}),
        ("launch_run", {"from_run": things["queued"], **launch}),
        ("launch_run", {"preset": f"team:{things['preset']}", **launch}),
        ("control_run", {"run": things["queued"], "do": "stop"}),
        ("get_analysis", {"kind": "question", "id": things["question"]}),
        ("ask_completions", {"question": things["question"]}),
        ("ask_completions", {"run": run, "text": "?", "judge": "judge"}),
        ("rescore_run", {"run": run, "recipe": things["recipe"]}),
    ]  # fmt: skip
