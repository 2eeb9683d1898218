"""Runs built as a worker builds them: claimed, then ingested event by event."""

import math
import random
import time
from collections.abc import Sequence
from typing import Any

from django.db import connection

from dashboard.accounts.models import Team
from dashboard.runs.charts.downsampling import build_rollups
from dashboard.runs.models import Run, RunState
from dashboard.runs.state import transition
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import Claim, claim_run
from tests.dashboard.completions.factories import make_run
from trainer.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    GroupScored,
    RunStarted,
    ScoredCompletion,
    StepFinished,
    Warned,
)


def queue_run(team: Team, **fields: Any) -> Run:
    return make_run(
        team,
        **{"state": "queued", "started_at": None, "finished_at": None, **fields},
    )


class Story:
    """One attempt of a run's trainer, as the database has it."""

    def __init__(self, run: Run, *, worker: str = "worker-1") -> None:
        claim = claim_run(run.id, worker)
        assert claim is not None, "the run is not queued"
        self.claim: Claim = claim
        self.run = run
        self.line = 0
        self.step = 0
        self.random = random.Random(7)

    def start(self) -> None:
        self._tell(
            RunStarted,
            num_steps=self.run.num_steps,
            num_parameters=1_000_000,
            num_train_rows=900,
            num_eval_rows=64,
            device="cpu",
            versions={"torch": "2"},
        )

    def take_steps(self, count: int, **metrics: float) -> None:
        """Ingested together, as the lines that a worker reads at once."""
        steps = []
        for _ in range(count):
            self.step += 1
            data = {**self._metrics(), **metrics}
            steps.append(self._event(StepFinished, metrics=data))
        ingest(self.claim, steps)

    def score_group(self, prompt_index: int = 0) -> None:
        completions = [
            ScoredCompletion(
                text=f"completion {i}",
                num_tokens=20 + i,
                end_reason="stop",
                reward=float(i % 2),
                rules={"answer": float(i % 2)},
                advantage=(-1.0) ** (i + 1),
                mean_logprob=-0.5,
            )
            for i in range(4)
        ]
        self._tell(
            GroupScored,
            prompt_index=prompt_index,
            prompt="2 + 2 =",
            answer="4",
            reward_mean=0.5,
            reward_std=0.577,
            signal="mixed",
            completions=completions,
        )

    def evaluate(self, **metrics: float) -> None:
        share = self._learned()
        self._tell(
            Evaluated,
            name="heldout",
            num_prompts=64,
            samples_per_prompt=1,
            metrics={
                "eval/heldout/mean": 0.1 + 0.8 * share,
                "eval/heldout/pass@1": 0.05 + 0.75 * share,
                **metrics,
            },
        )

    def save_checkpoint(self) -> None:
        name = f"step-{self.step:06d}-attempt-{self.claim.attempt}"
        self._tell(CheckpointSaved, name=name, sha256="ab" * 32, num_bytes=4_200_000)

    def warn(self, code: str, message: str, **fields: float) -> None:
        self._tell(Warned, code=code, message=message, **fields)

    def end(self, state: RunState, **fields: Any) -> None:
        run = Run.objects.get(id=self.run.id)
        assert transition(run.id, sources=[RunState(run.state)], target=state, **fields)

    def _tell(self, kind: type[Event], **fields: Any) -> None:
        ingest(self.claim, [self._event(kind, **fields)])

    def _event(self, kind: type[Event], **fields: Any) -> Event:
        self.line += 1
        return kind(
            line=self.line,
            attempt=self.claim.attempt,
            time=time.time(),
            step=self.step,
            **fields,
        )

    def _learned(self) -> float:
        return 1 / (1 + math.exp(-6 * (self.step / self.run.num_steps - 0.4)))

    def _metrics(self) -> dict[str, float]:
        def noise(size: float) -> float:
            return self.random.gauss(0, size)

        learned = self._learned()
        right = max(0.0, min(0.7, 0.6 * learned + noise(0.04)))
        wrong = max(0.0, min(1 - right, 0.5 * (1 - learned) + noise(0.04)))
        tied = min(0.06, 1 - right - wrong)
        seconds = 1.6 + abs(noise(0.1))
        return {
            "reward/mean": 0.1 + 0.9 * learned + noise(0.05),
            "reward/std": 0.42 - 0.2 * learned + abs(noise(0.02)),
            "reward/answer/mean": max(0.0, min(1.0, 0.8 * learned + noise(0.05))),
            "reward/format/mean": max(0.0, min(1.0, 0.3 + 0.7 * learned + noise(0.03))),
            "group/std_mean": 0.35 - 0.15 * learned + noise(0.02),
            "group/frac_zero_std": right + wrong + tied,
            "group/frac_all_max": right,
            "group/frac_all_min": wrong,
            "group/num_effective": round(16 * (1 - right - wrong - tied)),
            "advantage/abs_mean": 0.7 - 0.3 * learned + noise(0.03),
            "kl/mean": 0.002 + 0.06 * learned + abs(noise(0.003)),
            "kl/p99": 0.05 + 0.5 * learned + abs(noise(0.03)),
            "kl/max": 0.4 + 2 * learned + abs(noise(0.3)),
            "entropy": 1.6 - 0.9 * learned + noise(0.03),
            "ratio/mean": 1 + noise(0.002),
            "ratio/max": 1.3 + abs(noise(0.2)),
            "clip/frac_low": abs(noise(0.004)),
            "clip/frac_high": abs(noise(0.006)),
            "loss": noise(0.02),
            "grad_norm": 0.8 + abs(noise(0.3)),
            "lr": 1e-5 * min(1, self.step / 10),
            "completion/mean_length": 60 - 25 * learned + noise(1.5),
            "completion/frac_truncated": max(0.0, 0.2 * (1 - learned) + noise(0.02)),
            "time/generate": 0.55 * seconds,
            "time/score": 0.03 * seconds,
            "time/logprobs": 0.12 * seconds,
            "time/update": 0.26 * seconds,
            "time/sync": 0.02 * seconds,
            "time/step": seconds,
            "tokens_per_second": 1_900 / seconds,
        }


def make_history(
    run: Run, *, num_steps: int, num_metrics: int, names: Sequence[str] = ()
) -> None:
    """A long history, written in the database: random walks with spikes.

    The first metrics are called by `names`.
    """
    others = [f"metric/{i}" for i in range(num_metrics - len(names))]
    run.metric_names = [*names, *others]
    run.last_step, run.seq, run.attempt = num_steps, num_steps, 1
    run.summary = {"last": dict.fromkeys(run.metric_names, 0.5), "best": {}}
    run.save()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_step (run_id, step, epoch, seq, time, values) "
            "SELECT %s, s, 1, s, now() + s * interval '2 seconds', "
            "(SELECT array_agg(sin(s / 500.0 + k) + random() / 5 "
            "+ CASE WHEN random() < 0.0001 THEN 50 ELSE 0 END ORDER BY k) "
            "FROM generate_series(1, %s) k) FROM generate_series(1, %s) s",
            [run.id, num_metrics, num_steps],
        )
        build_rollups(run.id, first_step=1, last_step=num_steps)
        cursor.execute("ANALYZE runs_step, runs_rollup")
