"""Attempts, steps and prices, at times of 1 March 2026."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from dashboard.accounts.models import Team
from dashboard.costs.models import Price
from dashboard.runs.charts.downsampling import make_summaries
from dashboard.runs.models import Evaluation, Run, RunAttempt, RunEvent, Step
from tests.dashboard.completions.factories import make_config, make_run

H100 = "NVIDIA H100"
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
JUDGE = {
    "name": "quality",
    "kind": "llm_judge",
    "params": {"base_url": "https://judge.example.com", "model": "gpt-large"},
}


def at(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


def set_price(
    team: Team,
    amount: float | None,
    *,
    unit: str = "gpu_hour",
    name: str = H100,
    currency: str = "EUR",
    day: date = date(2026, 1, 1),
) -> Price:
    return Price.objects.create(
        team=team,
        unit=unit,
        name=name,
        amount=amount,
        currency=currency,
        valid_from=day,
    )


def make_costly_run(team: Team, **fields: Any) -> Run:
    """A run from noon to two o'clock, of two processes and a judge."""
    config = make_config([JUDGE], distributed={"num_processes": 2})
    run = make_run(team, **{"config": config} | fields)
    times = {"created_at": NOON, "started_at": NOON, "finished_at": at(2)}
    Run.objects.filter(pk=run.pk).update(**times)
    return Run.objects.get(pk=run.pk)


def add_attempt(
    run: Run,
    begin: float,
    end: float | None,
    *,
    number: int = 1,
    device: str = f"2 × {H100}",
) -> RunAttempt:
    """`begin` and `end` in hours after noon; without a device it told none."""
    attempt = RunAttempt.objects.create(
        run=run,
        number=number,
        worker="w",
        claimed_at=at(begin),
        ended_at=None if end is None else at(end),
    )
    if device:
        RunEvent.objects.create(
            run=run,
            seq=1_000 * number,
            attempt=number,
            line=1,
            type="run_started" if number == 1 else "run_resumed",
            step=0,
            time=at(begin),
            body={"device": device},
        )
    return attempt


def add_steps(run: Run, *steps: dict[str, Any], superseded: int = 0) -> None:
    """Each with `hour` and its metrics; the last ones may be superseded."""
    names = list(dict.fromkeys(name for step in steps for name in step))
    names.remove("hour")
    run.metric_names = names
    run.last_step = len(steps) - superseded
    run.save()
    for i, step in enumerate(steps, 1):
        Step.objects.create(
            run=run,
            step=i,
            attempt=1,
            seq=i,
            time=at(step["hour"]),
            values=[step.get(name) for name in names],
            superseded_by=2 if i > run.last_step else None,
        )
    make_summaries(run.pk)


def add_evaluation(run: Run, hour: float, **metrics: float | None) -> None:
    Evaluation.objects.create(
        run=run,
        step=1,
        name="heldout",
        attempt=1,
        seq=500,
        time=at(hour),
        metrics={f"eval/heldout/{name}": value for name, value in metrics.items()},
    )
    make_summaries(run.pk)
