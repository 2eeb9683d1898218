"""Rows of an older version, by its own models: each has what it knew at the time."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.migrations.state import StateApps

from tests.dashboard.samples.factories import make_config

TIME = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NAMES = ["reward/mean", "loss", "kl/mean"]
VALUES: dict[int, list[float | None]] = {
    1: [0.25, -0.5, None],
    2: [0.75, -1.5, 0.125],
    3: [0.5, -1.0, 1e-9],
}
TEXTS = ["The answer is 4 ✓ 𝒳", "two\nlines\u2028and <b>more</b>", "", "x" * 5_000]
REWARDS = [1.0, 0.5, None, 0.0]
LOGS = {"answer": "printed by a rule"}
AUDIT = {"verb": "team.created", "object_type": "team", "detail": {"slug": "alpha"}}


@dataclass(slots=True)
class Filled:
    """Keys of what was stored."""

    team: int
    run: int
    version: int
    group: int
    prints: bool  # a completion had what its rules printed
    first_job: int = 0
    delivery: uuid.UUID | None = None


class Filler:
    def __init__(self, apps: StateApps) -> None:
        self._apps = apps

    def knows(self, label: str, field: str = "id") -> bool:
        try:
            model = self._apps.get_model(label)
        except LookupError:
            return False
        return any(field in (one.name, one.attname) for one in model._meta.fields)

    def add(self, label: str, **values: Any) -> Any:
        """With the values that the model had a field for."""
        model = self._apps.get_model(label)
        kept = {name: v for name, v in values.items() if self.knows(label, name)}
        return model._default_manager.create(**kept)

    def fill(self) -> Filled:
        user = self.add("accounts.User", username="alice", display_name="Alice")
        team = self.add("accounts.Team", slug="alpha", name="Alpha")
        self.add("accounts.Membership", team=team, user=user, role="owner")
        entry = {**AUDIT, "object_id": team.pk}
        self.add("accounts.AuditEntry", team=team, actor=user, **entry)
        version = self._add_dataset(team, user)
        run = self._add_run(team, user, version)
        group = self._add_group(run)
        prints = self.knows("samples.Completion", "logs")
        filled = Filled(team.pk, run.pk, version.pk, group.pk, prints)
        if self.knows("datasets.ImportJob"):
            filled.first_job = self._add_jobs(team, version)
        if self.knows("alerts.Delivery"):
            filled.delivery = self._add_delivery(team)
        return filled

    def _add_dataset(self, team: Any, user: Any) -> Any:
        dataset = self.add("datasets.Dataset", team=team, name="sums", created_by=user)
        version = self.add(
            "datasets.DatasetVersion",
            dataset=dataset,
            number=1,
            content_sha256="a" * 64,
            num_rows=2,
            mapping={"prompt": "prompt", "answer": "answer", "columns": []},
        )
        for place in range(2):
            row = {"prompt": f"{place} + 2 =", "answer": str(place + 2), "columns": {}}
            self.add("datasets.DatasetRow", version=version, position=place, **row)
        if self.knows("datasets.VersionStatistics"):
            told = {"num_wanted": 2, "num_looked": 2, "result": {}, "moved_at": TIME}
            self.add("datasets.VersionStatistics", version=version, **told)
        return version

    def _add_run(self, team: Any, user: Any, version: Any) -> Any:
        recipe = self.add("rewards.RewardRecipe", team=team, name="exact")
        spec = {"rules": [{"name": "answer", "kind": "exact_answer", "weight": 1.0}]}
        recipe_version = self.add(
            "rewards.RecipeVersion",
            recipe=recipe,
            number=1,
            content_sha256="b" * 64,
            spec=spec,
        )
        run = self.add(
            "runs.Run",
            team=team,
            owner=user,
            name="calm-otter-1",
            state="finished",
            config=make_config(),
            model_label="tiny",
            dataset_version=version,
            recipe_version=recipe_version,
            num_steps=3,
            epoch=1,
            seq=len(VALUES),
            last_step=len(VALUES),
            metric_names=NAMES,
            summary={"last": dict(zip(NAMES, VALUES[3], strict=True)), "best": {}},
            started_at=TIME,
            # Behind created_at, which is now.
            finished_at=datetime.now(UTC) + timedelta(hours=1),
        )
        self.add("runs.Epoch", run=run, number=1, worker="w", claimed_at=TIME)
        for step, values in VALUES.items():
            place = {"run": run, "step": step, "epoch": 1, "seq": step, "time": TIME}
            self.add("runs.Step", values=values, **place)
            self.add("runs.RunEvent", type="step_finished", line=step, **place)
        # It came with imported runs: by then each run had summaries.
        if self.knows("runs.Run", "origin"):
            self._add_summaries(run)
        return run

    def _add_summaries(self, run: Any) -> None:
        for place, name in enumerate(NAMES):
            told = {step: values[place] for step, values in VALUES.items()}
            known = {step: value for step, value in told.items() if value is not None}
            low = min(known, key=lambda step: known[step])
            high = max(known, key=lambda step: known[step])
            last = max(known)
            self.add(
                "runs.MetricSummary",
                run=run,
                name=name,
                num=len(known),
                total=sum(known.values()),
                last=known[last],
                last_step=last,
                low=known[low],
                low_step=low,
                high=known[high],
                high_step=high,
            )

    def _add_group(self, run: Any) -> Any:
        group = self.add(
            "samples.Group",
            run=run,
            step=2,
            prompt_index=1,
            epoch=1,
            seq=2,
            prompt="1 + 2 =",
            answer="3",
            reward_mean=0.5,
            reward_std=0.5,
            signal="mixed",
            rule_names=["answer"],
        )
        if self.knows("samples.Completion"):
            self._add_completions(group)
        else:
            self._add_packed(group)
        return group

    def _add_completions(self, group: Any) -> None:
        """A row each."""
        for place, (text, reward) in enumerate(zip(TEXTS, REWARDS, strict=True)):
            self.add(
                "samples.Completion",
                group=group,
                position=place,
                text=text,
                num_tokens=10 + place,
                end_reason="stop",
                reward=reward,
                rule_scores=[reward],
                advantage=0.0,
                mean_logprob=-0.5,
                logs=LOGS if place == 0 else {},
            )

    def _add_packed(self, group: Any) -> None:
        """All in one row."""
        self.add(
            "samples.GroupCompletions",
            group=group,
            texts=TEXTS,
            num_bytes=sum(len(text.encode()) for text in TEXTS),
            num_tokens=[10 + place for place in range(len(TEXTS))],
            end_reasons=["stop"] * len(TEXTS),
            rewards=REWARDS,
            rule_scores=REWARDS,
            advantages=[0.0] * len(TEXTS),
            mean_logprobs=[-0.5] * len(TEXTS),
        )

    def _add_jobs(self, team: Any, version: Any) -> int:
        """Two of one upload, both done: a second click once made such a pair."""
        jobs = [
            self.add(
                "datasets.ImportJob",
                team=team,
                version=version,
                upload_id=4,
                filename="sums.jsonl",
                num_bytes=100,
                num_to_read=100,
                mapping={},
                state="done",
                ended_at=TIME,
                made_version=number == 0,
            )
            for number in range(2)
            if number == 0 or not self.knows("datasets.ImportJob", "key")
        ]
        return int(jobs[0].pk)

    def _add_delivery(self, team: Any) -> uuid.UUID:
        channel = self.add("alerts.Channel", team=team, kind="email", address="a@b.c")
        told = {"state": "sent", "not_before": TIME, "event": "test"}
        delivery = self.add("alerts.Delivery", channel=channel, **told)
        key: uuid.UUID = delivery.pk
        return key
