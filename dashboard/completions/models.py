"""Groups and completions, their annotations, and data of searches and charts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Func, IntegerField, Q

from dashboard.accounts.models import User
from dashboard.datasets.row import WithAnswer
from dashboard.runs.models import Run, WithAttempt
from trainer.events import TurnRecord, policy_text

MAX_TAG_CHARS = 40
MAX_COMMENT_CHARS = 4_000


class Annotation(models.Model):
    """A user's annotation of a group or of one of its completions."""

    group = models.ForeignKey(
        "samples.Group", models.CASCADE, related_name="%(class)ss", db_index=False
    )
    position = models.PositiveSmallIntegerField(null=True)  # None: the whole group
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True


class Thumb(Annotation):
    """A user's judgement."""

    user = models.ForeignKey(User, models.CASCADE, related_name="+")
    is_up = models.BooleanField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["group", "position", "user"],
                name="one_thumb_a_person",
                nulls_distinct=False,
            ),
        ]

    def __str__(self) -> str:
        return f"{'good' if self.is_up else 'bad'} by {self.user}"


class Tag(Annotation):
    """A tag, shared by the team."""

    user = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    name = models.CharField(max_length=MAX_TAG_CHARS)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["group", "position", "name"],
                name="tag_once",
                nulls_distinct=False,
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Comment(models.Model):
    """A user's comment on a group, one of its completions, a run or a report."""

    group = models.ForeignKey(
        "samples.Group",
        models.CASCADE,
        null=True,
        related_name="comments",
        db_index=False,
    )
    position = models.PositiveSmallIntegerField(null=True)  # None: no completion
    # Pages of the previous release join this table and name a bare run_id.
    run = models.ForeignKey(
        Run,
        models.CASCADE,
        null=True,
        related_name="comments",
        db_column="commented_run_id",
    )
    report = models.ForeignKey(
        "reports.Report", models.CASCADE, null=True, related_name="comments"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    user = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    text = models.TextField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=(
                    Q(group__isnull=False, run=None, report=None)
                    | Q(group=None, position=None, run__isnull=False, report=None)
                    | Q(group=None, position=None, run=None, report__isnull=False)
                ),
                name="comment_has_one_target",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["group", "position"], name="comment_of_group"),
        ]

    def __str__(self) -> str:
        return self.text[:80]


class Mention(models.Model):
    """A user mentioned in a comment."""

    comment = models.ForeignKey(Comment, models.CASCADE, related_name="mentions")
    # Every page counts the unseen mentions of its user.
    user = models.ForeignKey(
        User, models.CASCADE, related_name="mentions", db_index=False
    )
    seen_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["comment", "user"], name="mentioned_once_a_comment"
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["user", "-id"], name="mention_newest_first"),
            models.Index(
                fields=["user"],
                condition=models.Q(seen_at__isnull=True),
                name="mention_not_seen",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.comment_id}"


class CompletionBlock(models.Model):
    """All completions of some steps in a row, in columns (DECISIONS.md, 14).

    By step, prompt and position; laid out in search/columns.py. A block is never
    changed: a worker makes another one and deletes it. Those past a resume's step are
    deleted.
    """

    run = models.ForeignKey(
        Run, models.CASCADE, related_name="completion_blocks", db_index=False
    )
    first_step = models.PositiveIntegerField()
    last_step = models.PositiveIntegerField()
    made_at = models.DateTimeField(auto_now_add=True)
    num_completions = models.PositiveIntegerField()
    num_chars = models.BigIntegerField()  # of the texts, as bytes
    rule_names = ArrayField(models.CharField(max_length=40), default=list)
    steps = models.BinaryField()
    tallies = models.BinaryField()
    # One entry a group.
    prompts = models.BinaryField()
    group_ids = models.BinaryField()
    group_sizes = models.BinaryField()
    # One entry a completion.
    rewards = models.BinaryField()
    advantages = models.BinaryField()
    lengths = models.BinaryField()
    kinds = models.BinaryField()
    full_scores = models.BinaryField()
    no_scores = models.BinaryField()
    # Of episodes; empty where a block has none, and in blocks older than the columns.
    turns = models.BinaryField(default=b"", db_default=b"")
    waits = models.BinaryField(default=b"", db_default=b"")
    # One row of entries a rule.
    scores = models.BinaryField()
    # One row of bits for each of `num_bits` hashes of trigrams (search/text.py).
    num_bits = models.PositiveIntegerField()
    signatures = models.BinaryField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "first_step"], name="block_begins_once"
            ),
            models.CheckConstraint(
                condition=models.Q(first_step__lte=models.F("last_step")),
                name="block_ends_after_it_begins",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} steps {self.first_step} to {self.last_step}"


class GroupQuerySet(models.QuerySet["Group"]):
    def current(self) -> Self:
        """Leave out superseded groups."""
        return self.filter(superseded_by__isnull=True)


class Group(WithAnswer, WithAttempt):
    """The completions of one prompt at one step."""

    # Both foreign keys are found through the wider indexes below.
    run = models.ForeignKey(Run, models.CASCADE, related_name="groups", db_index=False)
    prompt_index = models.PositiveIntegerField()
    seq = models.BigIntegerField()
    prompt = models.TextField()
    # As trainer.events.GroupScored has them; null: not stored.
    begun = models.TextField(default="", db_default="")
    messages = models.JSONField(null=True)
    answer = models.TextField(null=True)  # noqa: DJ001 - "" is an answer, NULL is none
    # Several answers, as JSON; any is right.
    answer_is_list = models.BooleanField(default=False, db_default=False)
    reward_mean = models.FloatField(null=True)
    reward_std = models.FloatField(null=True)
    signal = models.CharField(max_length=10)  # trainer.events.Signal
    rule_names = ArrayField(models.CharField(max_length=40), default=list)
    # False: dynamic sampling left it out of the batch.
    is_trained = models.BooleanField(default=True, db_default=True)
    # What rules printed or failed with; RuleNote has those that the event had room for.
    num_notes = models.PositiveIntegerField(default=0, db_default=0)
    age = models.PositiveIntegerField(null=True)  # as trainer.events has it

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
    groups (DECISIONS.md, 22).
    """

    group = models.OneToOneField(
        Group, models.CASCADE, primary_key=True, related_name="packed_completions"
    )
    texts = ArrayField(models.TextField())
    num_bytes = models.PositiveIntegerField()  # of the texts, as UTF-8
    # Null, here and below: unknown for some imported runs.
    num_tokens = ArrayField(models.PositiveIntegerField(null=True))
    end_reasons = ArrayField(
        models.CharField(max_length=10)
    )  # trainer.events.EndReason
    rewards = ArrayField(models.FloatField(null=True))
    advantages = ArrayField(models.FloatField(null=True))
    mean_logprobs = ArrayField(models.FloatField(null=True))
    # Completion after completion, for each as group.rule_names.
    rule_scores = ArrayField(models.FloatField(null=True))
    # Of each completion the trainer.events.TurnRecord of its turns, without defaults;
    # null: none is an episode.
    turns = models.JSONField(null=True)

    def __str__(self) -> str:
        return f"completions of {self.group}"


class GroupTokens(models.Model):
    """The token values of a group; stored for a few groups, deleted with them."""

    group = models.OneToOneField(
        Group, models.CASCADE, primary_key=True, related_name="tokens"
    )
    # As tokens.py lays it out; 8 completions of 500 tokens take 87 kB.
    packed = models.BinaryField()

    def __str__(self) -> str:
        return f"tokens of {self.group}"


class RuleNote(models.Model):
    """The output of a rule for a completion, or why it gave no score.

    Deleted with its group. Most completions have none, so the reward log of a run is
    read without reading them.
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


class StepRollup(WithAttempt):
    """The data of one step for the signal charts, computed at ingestion.

    The columns are packed records, laid out in signals/records.py: a run of 100,000
    steps is read in one piece (DECISIONS.md, 9).
    """

    run = models.ForeignKey(
        Run, models.CASCADE, related_name="step_rollups", db_index=False
    )
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

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            # One index for all: Step sees to it that the current history is one.
            models.UniqueConstraint(
                fields=["run", "step", "attempt"], name="rollup_once_a_life"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} step {self.step}"


class MismatchStep(WithAttempt):
    """The gap between sampler and trainer at one step, as mismatch.py packs it."""

    run = models.ForeignKey(
        Run, models.CASCADE, related_name="mismatch_steps", db_index=False
    )
    against = models.CharField(max_length=10)  # trainer.events.Against
    incomparable = models.CharField(max_length=20, blank=True)  # "": it says much
    age = models.PositiveIntegerField(null=True)  # of the oldest group
    dtype = models.CharField(max_length=10, blank=True, default="", db_default="")
    groups = models.BinaryField()
    completions = models.BinaryField()  # 256 take 7 kB
    bins = models.BinaryField()  # 900 bytes

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "step", "attempt"], name="mismatch_once_a_step"
            ),
        ]

    def __str__(self) -> str:
        return f"mismatch of {self.run_id} step {self.step}"


# Of a GroupCompletions, in SQL; its texts are not read for it.
NUM_COMPLETIONS = Func(
    F("end_reasons"), function="cardinality", output_field=IntegerField()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """Stored with the others of its group (DECISIONS.md, 22)."""

    group: Group
    position: int  # 0 … G-1
    text: str
    # None, here and below: unknown for some imported runs.
    num_tokens: int | None
    end_reason: str  # trainer.events.EndReason
    reward: float | None
    rule_scores: tuple[float | None, ...]  # as group.rule_names
    advantage: float | None
    mean_logprob: float | None
    turns: tuple[TurnRecord, ...] = ()  # of an episode; else it is one of the policy

    @property
    def policy_text(self) -> str:
        return policy_text(self.text, map(vars, self.turns))

    @property
    def num_turns(self) -> int:
        """The number of turns of the policy; 0: it is not an episode."""
        return sum(turn.author == "policy" for turn in self.turns)

    @property
    def group_id(self) -> int:
        return self.group.pk

    @property
    def scores(self) -> list[tuple[str, float | None]]:
        """By rule."""
        return list(zip(self.group.rule_names, self.rule_scores, strict=False))

    def __str__(self) -> str:
        return f"{self.group} completion {self.position}"


def policy_texts(texts: Sequence[str], turns: str | None) -> list[str]:
    """Return what policies wrote of completions; their turns as GroupCompletions has
    them, in JSON.
    """
    return list(map(policy_text, texts, json.loads(turns) if turns else repeat(())))


def unpack(group: Group, stored: GroupCompletions) -> Iterator[Completion]:
    """Return the completions by position."""
    width = len(group.rule_names)
    all_turns = stored.turns or [[]] * len(stored.texts)
    for position, text in enumerate(stored.texts):
        scores = stored.rule_scores[position * width : (position + 1) * width]
        yield Completion(
            group=group,
            position=position,
            text=text,
            num_tokens=stored.num_tokens[position],
            end_reason=stored.end_reasons[position],
            reward=stored.rewards[position],
            rule_scores=tuple(scores),
            advantage=stored.advantages[position],
            mean_logprob=stored.mean_logprobs[position],
            turns=tuple(
                TurnRecord.model_validate(turn, extra="ignore")
                for turn in all_turns[position]
            ),
        )
