"""Completions of finished steps, packed so that millions are looked through at once."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models

from dashboard.runs.models import Run


class CompletionBlock(models.Model):
    """All completions of some steps in a row, in columns (DECISIONS.md, 14).

    By step, prompt and position; laid out in columns.py. A block is never changed: a
    worker makes another one and deletes it. Those past a resume's step are deleted.
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
    # One row of entries a rule.
    scores = models.BinaryField()
    # One row of bits for each of `num_bits` hashes of trigrams (trigrams.py).
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
