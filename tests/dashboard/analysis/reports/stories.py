"""Runs worth a report."""

from dashboard.accounts.models import Team, User
from dashboard.analysis.reports.models import Report
from dashboard.analysis.reports.services import create_report
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import (
    make_config,
    make_group,
    make_run,
    make_steps,
)


def make_measured_run(team: Team, name: str = "calm-otter-1", **fields: object) -> Run:
    run = make_run(
        team,
        name,
        summary={
            "last": {"reward/mean": 0.75, "kl/mean": 0.02},
            "best": {"reward/mean": 0.8},
        },
        **fields,
    )
    values = [0.1 + 0.6 * i / 60 + 0.08 * ((i * 7) % 5 - 2) / 2 for i in range(60)]
    make_steps(
        run, {"reward/mean": [*values], "kl/mean": [0.001 * i for i in range(60)]}
    )
    return run


def make_other_run(team: Team, name: str = "brave-finch-2", **fields: object) -> Run:
    config = make_config(rollout={"prompts_per_step": 4, "group_size": 8})
    return make_measured_run(team, name, config=config, **fields)


def make_sampled_group(run: Run) -> None:
    texts = ["<think>3+1</think> 4", "It is 4.", "Maybe 5?", "5"]
    make_group(run, step=40, prompt_index=3, texts=texts)


def make_report(team: Team, user: User, text: str, title: str = "Findings") -> Report:
    return create_report(team=team, user=user, title=title, text=text, hosts=())
