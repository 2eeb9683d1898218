"""Runs that differ in whatever a run table filters, sorts and groups by."""

from datetime import timedelta

from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.runs.models import Run, RunAttempt, RunState, Sweep
from tests.dashboard.runs.launching import (
    make_config,
    make_dataset,
    make_recipe,
    make_run,
    summarize,
)

RATES = {"amber": 1e-6, "brave": 3e-6, "calm": 1e-5, "deft": 3e-5}


def make_runs(team: Team, owner: User) -> dict[str, Run]:
    """amber finished, brave running, calm queued, deft failed and without an owner."""
    sums, words = make_dataset(team, "sums"), make_dataset(team, "words")
    recipe = make_recipe(team)
    sweep = Sweep.objects.create(team=team, name="rates")
    now = timezone.now()
    end = now + timedelta(minutes=1)  # a run ends after it was created
    fields = {
        "amber": {
            "state": RunState.FINISHED,
            "finished_at": end,
            "tags": ["baseline", "long run"],
            "started_at": end - timedelta(hours=3),
            "last_step": 100,
        },
        "brave": {
            "state": RunState.RUNNING,
            "lease_until": end,
            "tags": ["baseline"],
            "started_at": end - timedelta(minutes=30),
            "sweep": sweep,
            "last_step": 50,
        },
        "calm": {"notes": "Looks odd, see #3", "sweep": sweep},
        "deft": {
            "state": RunState.FAILED,
            "finished_at": end,
            "owner": None,
            "dataset": words,
            "model_label": "Qwen",
        },
    }
    runs = {}
    for name, rate in RATES.items():
        config = make_config(optim={"learning_rate": rate, "num_steps": 100})
        config["reward"]["recipe"]["rules"][0]["weight"] = (
            2.0 if name == "deft" else 1.0
        )
        if name == "amber":
            warm = {"name": "warm", "num_steps": 100}
            config["phases"] = [{**warm, "changes": {"loss": {"kl_coef": 0.1}}}]
        if name == "calm":  # older than the setting
            del config["rollout"]["temperature"]
        usual = {"dataset": sums, "recipe": recipe, "owner": owner, "config": config}
        run = runs[name] = make_run(team, name, **{**usual, **fields[name]})
        if run.started_at:
            RunAttempt.objects.create(
                run=run,
                number=1,
                worker="w",
                claimed_at=run.started_at,
                ended_at=run.finished_at,
            )
    summarize(
        runs["amber"], "reward/mean", last=0.6, low=0.1, high=0.9, total=5, num=10
    )
    summarize(runs["brave"], "reward/mean", last=0.4, low=0.2, high=0.5, total=3, num=5)
    summarize(runs["deft"], "reward/mean", last=0.8, low=0.0, high=0.8, total=2, num=8)
    summarize(runs["amber"], "entropy", last=1.5, low=1.0, high=2.0, total=15, num=10)
    return runs
