"""Probes, as people start them."""

from typing import Any

from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.probes.services import start_probe
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.jobs.models import Job
from tests.dashboard.completions.factories import store_dataset
from trainer.config import RunConfig

RECIPE = {"rules": [{"name": "right", "kind": "numeric_answer", "weight": 1.0}]}


def make_version(team: Team, count: int = 6, name: str = "Sums") -> DatasetVersion:
    rows = [Row(prompt=f"{n}+{n}?", answer=str(2 * n)) for n in range(count)]
    return store_dataset(team, rows, name=name)


def make_probe(team: Team, version: DatasetVersion, **changes: Any) -> Probe:
    tree = {
        "model": {"path": "/nowhere/model"},
        "data": {"rows": "rows.jsonl", "num_eval_rows": 0},
        "reward": {"recipe": RECIPE},
        "rollout": {"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 12},
    }
    given: dict[str, Any] = {
        "team": team,
        "user": None,
        "config": RunConfig.model_validate(tree),
        "dataset_version": version,
        "positions": [1, 3],
        "num_samples": 2,
    }
    return start_probe(**given | changes)


def completion(text: str, reward: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "text": text,
        "num_tokens": len(text),
        "end_reason": "stop",
        "reward": reward,
        "rules": {"right": reward},
        "errors": {},
        **changes,
    }


def measured(**changes: Any) -> dict[str, Any]:
    """What a probe of 32 prompts may have found."""
    return {
        "num_prompts": 32,
        "num_samples": 8,
        "group_size": 8,
        "num_unscored": 0,
        "mean": 0.3,
        "mean/low": 0.25,
        "mean/high": 0.35,
        "pass@1": 0.25,
        "pass@1/low": 0.2,
        "pass@1/high": 0.3,
        "pass@8": 0.8,
        "pass@8/low": 0.65,
        "pass@8/high": 0.9,
        "mean_length": 40.0,
        "length/p50": 38.0,
        "length/max": 96,
        "frac_truncated": 0.0,
        "signal/share": 0.8,
        "signal/low": 0.65,
        "signal/high": 0.9,
        "group/seen": 0.8,
        "tokens_per_second": 1000.0,
        "step/tokens": 10_240.0,
        "step/generate": 1.0,
        "step/score": 0.1,
        "step/update": 0.9,
        "step/total": 2.0,
        "peak_bytes": 5e8,
        "device": "cpu (2 threads)",
        "update_problem": None,
        **changes,
    }


def finish(
    *, num_done: int = 0, state: str = "done", error: str = "", **changes: Any
) -> None:
    """All probes, as a worker that did them leaves them."""
    ended = None if state == "queued" else timezone.now()
    Job.objects.update(state=state, done=num_done, error=error, finished_at=ended)
    if changes:
        Probe.objects.update(**changes)
