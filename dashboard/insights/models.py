"""What people prefer of two runs' completions, not knowing which is whose."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from dashboard.accounts.models import Team, User
from dashboard.samples.models import Completion


class Vote(models.Model):
    """Of two completions of one prompt; the first is the one with the lower number."""

    class Choice(models.TextChoices):
        FIRST = "first"
        SECOND = "second"
        TIE = "tie"

    team = models.ForeignKey(Team, models.CASCADE, related_name="+")
    voter = models.ForeignKey(User, models.CASCADE, related_name="+")
    first = models.ForeignKey(Completion, models.CASCADE, related_name="+")
    second = models.ForeignKey(Completion, models.CASCADE, related_name="+")
    choice = models.CharField(max_length=6, choices=Choice)
    voted_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["voter", "first", "second"], name="one_vote_a_person_and_pair"
            ),
            models.CheckConstraint(
                condition=Q(first__lt=F("second")), name="vote_in_order"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.choice} of {self.first_id}, {self.second_id} by {self.voter}"
