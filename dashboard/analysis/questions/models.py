"""Questions about a run's completions: labels of a judge, and of people."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.core.validators import RegexValidator
from django.db import models

from dashboard.accounts.models import Named, Team
from dashboard.completions.models import Group
from dashboard.jobs.models import JobTarget
from dashboard.runs.models import Run
from trainer.rewards.model_judge.client import KEY_NAME
from trainer.rewards.model_judge.labels import LONGEST_KIND, LONGEST_WHY, Label

MAX_LABEL_CHARS = 40
MAX_QUERY_CHARS = 2_000
MAX_JUDGE_NAME = 80
JUDGE_FIELDS = ("name", "base_url", "model", "key_name")


class TeamJudge(Named):
    """A model at an endpoint that answers questions; its key stays in the environment
    of the workers.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="judges")
    name = models.CharField(max_length=MAX_JUDGE_NAME)
    base_url = models.CharField("URL", max_length=500)
    model = models.CharField(max_length=200)
    key_name = models.CharField(
        "API key name",
        max_length=40,
        blank=True,
        validators=[RegexValidator(KEY_NAME)],
    )

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "name"], name="judge_name_free"),
        ]


class Question(JobTarget):
    """A question that a judge is asked of a sample of completions; it never changes.

    Its sample is drawn by its first job, which labels the first `goal` of it: some to
    try, and all once it is started.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="questions")
    run = models.ForeignKey(Run, models.CASCADE, related_name="questions")
    text = models.CharField(max_length=4_000)
    # {"name", "meaning"} each; the first is the one that is asked for, as "yes".
    labels = models.JSONField[list[dict[str, str]]]()
    shows_prompt = models.BooleanField(default=True)
    query = models.CharField(
        max_length=MAX_QUERY_CHARS, blank=True
    )  # of Samples → Search
    judge = models.JSONField[dict[str, Any]]()  # its JUDGE_FIELDS
    uses_schema = models.BooleanField(default=True)  # False: the endpoint refuses one
    sample_size = models.PositiveIntegerField()
    seed = models.PositiveIntegerField(default=0)
    prompt_version = models.PositiveSmallIntegerField()
    goal = models.PositiveIntegerField()
    budget_tokens = models.BigIntegerField(null=True)  # null: while it is tried
    num_found = models.BigIntegerField(null=True)  # completions that match the query
    # The judge's phrases by the names that it gave them; {}: it has not grouped them.
    kinds = models.JSONField[dict[str, list[str]]](default=dict, db_default={})
    kinds_tokens_in = models.PositiveIntegerField(default=0, db_default=0)
    kinds_tokens_out = models.PositiveIntegerField(default=0, db_default=0)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-id"]),
        ]

    def __str__(self) -> str:
        return self.text[:80]

    @property
    def names(self) -> list[str]:
        return [label["name"] for label in self.labels]

    @property
    def parsed_labels(self) -> list[Label]:
        return [Label(**label) for label in self.labels]


class CompletionLabel(models.Model):
    """A completion of a question's sample, and what the judge replied: "" before."""

    question = models.ForeignKey(
        Question, models.CASCADE, related_name="sample", db_index=False
    )
    group = models.ForeignKey(Group, models.CASCADE, related_name="+")
    position = models.PositiveSmallIntegerField()
    step = models.PositiveIntegerField()
    window = models.PositiveSmallIntegerField()
    weight = models.FloatField()
    rank = models.PositiveIntegerField()  # in the order of asking, from 0
    label = models.CharField(max_length=MAX_LABEL_CHARS, blank=True)
    # Of the policy's text; null: there was no quote, or it was not found.
    quote_from = models.PositiveIntegerField(null=True)
    quote_to = models.PositiveIntegerField(null=True)
    has_lost_quote = models.BooleanField(default=False)
    why = models.CharField(max_length=LONGEST_WHY, blank=True)
    kind = models.CharField(max_length=LONGEST_KIND, blank=True)
    num_tokens_in = models.PositiveIntegerField(default=0)
    num_tokens_out = models.PositiveIntegerField(default=0)
    problem = models.TextField(blank=True)  # why there is no label

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["question", "rank"], name="sampled_rank"),
            models.UniqueConstraint(
                fields=["question", "group", "position"], name="sampled_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.label or 'no label'} of {self.group_id}/{self.position}"

    @property
    def text(self) -> str:
        """The text that the policy wrote; "" once retention has deleted it."""
        completions = self.group.completions[self.position : self.position + 1]
        return "".join(completion.policy_text for completion in completions)


class HandLabel(models.Model):
    """A person's label of a completion, given without seeing the judge's; "": it could
    not be decided.
    """

    of = models.ForeignKey(
        CompletionLabel, models.CASCADE, related_name="by_hand", db_index=False
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    label = models.CharField(max_length=MAX_LABEL_CHARS, blank=True)
    is_imported = models.BooleanField(default=False, db_default=False)  # by the API
    created_at = models.DateTimeField(auto_now=True)  # the newest label counts

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["of", "user"], name="labelled_once_a_person"
            ),
        ]

    def __str__(self) -> str:
        return self.label or "undecided"
