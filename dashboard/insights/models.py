"""What people prefer of two runs' completions, not knowing which is whose."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from dashboard.accounts.models import Team, User
from dashboard.samples.models import Group


class Vote(models.Model):
    """Of two completions of one prompt, the first one by group and position first."""

    class Choice(models.TextChoices):
        FIRST = "first"
        SECOND = "second"
        TIE = "tie"

    team = models.ForeignKey(Team, models.CASCADE, related_name="+")
    voter = models.ForeignKey(User, models.CASCADE, related_name="+")
    first_group = models.ForeignKey(Group, models.CASCADE, related_name="+")
    first_position = models.PositiveSmallIntegerField()
    second_group = models.ForeignKey(Group, models.CASCADE, related_name="+")
    second_position = models.PositiveSmallIntegerField()
    choice = models.CharField(max_length=6, choices=Choice)
    voted_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=[
                    "voter",
                    "first_group",
                    "first_position",
                    "second_group",
                    "second_position",
                ],
                name="one_vote_a_person_and_pair",
            ),
            models.CheckConstraint(
                condition=Q(first_group__lt=F("second_group"))
                | Q(
                    first_group=F("second_group"),
                    first_position__lt=F("second_position"),
                ),
                name="vote_in_order",
            ),
        ]

    def __str__(self) -> str:
        first = f"{self.first_group_id}:{self.first_position}"
        second = f"{self.second_group_id}:{self.second_position}"
        return f"{self.choice} of {first}, {second} by {self.voter}"
