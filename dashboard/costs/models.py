"""Prices of a team, and what judges were asked for outside training."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.runs.models import Run
from trainer.rewards.spec import Recipe


class Unit(models.TextChoices):
    GPU_HOUR = "gpu_hour", "GPU-hour"
    INPUT = "input_tokens", "1M input tokens"
    CACHED = "cached_tokens", "1M cached input tokens"
    OUTPUT = "output_tokens", "1M output tokens"


class Price(models.Model):
    """The price of a unit from a day on, in UTC. Rows are added, never changed: of two
    from the same day the newer one holds.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="prices")
    unit = models.CharField(max_length=20, choices=Unit)
    # Of the hardware, as workers and servers report it, or of the judge's model.
    name = models.CharField("Hardware or judge model", max_length=200)
    amount = models.FloatField(
        "Price",
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(1e9)],
    )  # null: not set from then on
    # "": of a judge that had a price before prices had currencies.
    currency = models.CharField(
        max_length=3,
        validators=[RegexValidator("^[A-Z]{3}$", "Use a code such as EUR.")],
    )
    valid_from = models.DateField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(amount=None) | Q(amount__gte=0), name="price_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_unit_display()} of {self.name}"


class JudgeUse(models.Model):
    """A day's calls and tokens of a judge in a test, a rescoring or a question.

    Training's own are metrics of its steps. Tokens are those that replies told; of
    `calls_without_usage` they are unknown.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="judge_uses")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    run = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="judge_uses")
    source = models.CharField(max_length=20)  # the job's kind; "trial": of a reward
    target_id = models.BigIntegerField(default=0)  # the job's target
    model = models.CharField(max_length=200)
    day = models.DateField()
    # trainer.rewards.model_judge.client.USAGE
    calls = models.BigIntegerField(default=0)
    calls_without_usage = models.BigIntegerField(default=0)
    from_file = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["team", "user", "source", "target_id", "model", "day"],
                nulls_distinct=False,
                name="judge_use_once_a_day",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} on {self.day}"


def judge_models(recipe: Recipe) -> dict[str, str]:
    """Return the models of a recipe's judges, by rule."""
    return {
        rule.name: str(rule.params["model"])
        for rule in recipe.rules
        if "model" in rule.params
    }


def add_judge_use(
    usage: Mapping[str, Mapping[str, int]],
    *,
    models: Mapping[str, str] = MappingProxyType({}),
    team: Team,
    user: User | None,
    source: str,
    target_id: int = 0,
    run: Run | None = None,
) -> None:
    """Add calls and tokens, by rule or by model, to those of today.

    Args:
        models: of the judges, where `usage` is by rule.
    """
    for name, counts in usage.items():
        row, _ = JudgeUse.objects.get_or_create(
            team=team,
            user=user,
            source=source,
            target_id=target_id,
            model=models.get(name, name)[:200],
            day=timezone.now().date(),
            defaults={"run": run},
        )
        JudgeUse.objects.filter(pk=row.pk).update(
            **{count: F(count) + number for count, number in counts.items()}
        )
