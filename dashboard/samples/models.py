from __future__ import annotations

from typing import ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from dashboard.runs.models import Run

# Django looks for models here.
from dashboard.samples.annotations.models import Comment as Comment
from dashboard.samples.annotations.models import Mention as Mention
from dashboard.samples.annotations.models import Tag as Tag
from dashboard.samples.annotations.models import Thumb as Thumb
from dashboard.samples.completion import Completion, unpack
from dashboard.samples.search.models import CompletionBlock as CompletionBlock


class GroupQuerySet(models.QuerySet["Group"]):
    def current(self) -> Self:
        """Without the steps that a resume went back before."""
        return self.filter(superseded_by__isnull=True)


class Group(models.Model):
    """The completions of one prompt at one step."""

    # Both foreign keys are found through the wider indexes below.
    run = models.ForeignKey(Run, models.CASCADE, related_name="groups", db_index=False)
    step = models.PositiveIntegerField()
    prompt_index = models.PositiveIntegerField()
    epoch = models.PositiveIntegerField()
    seq = models.BigIntegerField()
    prompt = models.TextField()
    answer = models.TextField(null=True)  # noqa: DJ001 - "" is an answer, NULL is none
    reward_mean = models.FloatField(null=True)
    reward_std = models.FloatField(null=True)
    signal = models.CharField(max_length=10)  # trainer.events.Signal
    rule_names = ArrayField(models.CharField(max_length=40), default=list)
    # False: dynamic sampling left it out of the batch.
    is_trained = models.BooleanField(default=True, db_default=True)
    # What rules printed or failed with; RuleNote has those that the event had room for.
    num_notes = models.PositiveIntegerField(default=0, db_default=0)
    superseded_by = models.PositiveIntegerField(null=True, blank=True)

    objects = GroupQuerySet.as_manager()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "step", "prompt_index"],
                condition=Q(superseded_by__isnull=True),
                name="group_once_in_current_history",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            # The same prompt at the next or previous step.
            models.Index(fields=["run", "prompt_index", "step"]),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} step {self.step} prompt {self.prompt_index}"

    @property
    def completions(self) -> list[Completion]:
        """By position; none where retention has deleted them.

        One query, unless packed_completions has been fetched with the group.
        """
        try:
            return list(unpack(self, self.packed_completions))
        except GroupCompletions.DoesNotExist:
            return []


class GroupCompletions(models.Model):
    """The completions of one group in columns, an entry a completion, by position.

    PostgreSQL compresses the texts of a group as one value, and a run is deleted by its
    groups (DECISIONS.md, 22). It lives as long as its group, or till retention deletes
    it.
    """

    group = models.OneToOneField(
        Group, models.CASCADE, primary_key=True, related_name="packed_completions"
    )
    texts = ArrayField(models.TextField())
    num_bytes = models.PositiveIntegerField()  # of the texts, as UTF-8
    # Null, here and below: an imported run does not tell.
    num_tokens = ArrayField(models.PositiveIntegerField(null=True))
    end_reasons = ArrayField(
        models.CharField(max_length=10)
    )  # trainer.events.EndReason
    rewards = ArrayField(models.FloatField(null=True))
    advantages = ArrayField(models.FloatField(null=True))
    mean_logprobs = ArrayField(models.FloatField(null=True))
    # Completion after completion, for each as group.rule_names.
    rule_scores = ArrayField(models.FloatField(null=True))

    def __str__(self) -> str:
        return f"completions of {self.group}"


class GroupTokens(models.Model):
    """What the update did to each token of a group: of the few that are kept so.

    It lives as long as its group.
    """

    group = models.OneToOneField(
        Group, models.CASCADE, primary_key=True, related_name="tokens"
    )
    # As token_records.py lays it out; 8 completions of 500 tokens take 87 kB.
    packed = models.BinaryField()

    def __str__(self) -> str:
        return f"tokens of {self.group}"


class RuleNote(models.Model):
    """What a rule printed about a completion, or why it gave it no score.

    It lives as long as its group: most completions have none, so the reward log of a
    run is read without looking at them.
    """

    run = models.ForeignKey(
        Run, models.CASCADE, related_name="rule_notes", db_index=False
    )
    group = models.ForeignKey(
        Group, models.CASCADE, related_name="notes", db_index=False
    )
    step = models.PositiveIntegerField()
    position = models.PositiveSmallIntegerField()  # the completion's in its group
    rule = models.CharField(max_length=40)
    is_error = models.BooleanField()
    text = models.TextField()

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["run", "-step", "id"], name="note_newest_first"),
            models.Index(fields=["group", "position"], name="note_of_group"),
        ]

    def __str__(self) -> str:
        return f"{self.rule} on {self.group_id} completion {self.position}"


class StepRollup(models.Model):
    """What the signal charts need of a step, made when it is ingested.

    The columns are packed records, laid out in signals/records.py: a run of 100,000
    steps is read in one piece (DECISIONS.md, 9).
    """

    run = models.ForeignKey(
        Run, models.CASCADE, related_name="step_rollups", db_index=False
    )
    step = models.PositiveIntegerField()
    epoch = models.PositiveIntegerField()
    groups = models.BinaryField()
    reward_quantiles = models.BinaryField()
    reward_histogram = models.BinaryField()
    advantage_quantiles = models.BinaryField()
    advantage_histogram = models.BinaryField()
    rule_names = ArrayField(models.CharField(max_length=40), default=list)
    rules = models.BinaryField()
    anatomy = models.BinaryField()
    # By group, as in `groups`; empty in rollups that are older than this column.
    passes = models.BinaryField(default=b"", db_default=b"")
    # By k; empty in rollups that are older than this column.
    majorities = models.BinaryField(default=b"", db_default=b"")
    superseded_by = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            # One index for all: Step sees to it that the current history is one.
            models.UniqueConstraint(
                fields=["run", "step", "epoch"], name="rollup_once_a_life"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} step {self.step}"
