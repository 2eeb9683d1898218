"""What people say of a group or of one of its completions."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from dashboard.accounts.models import User

MAX_TAG_CHARS = 40
MAX_COMMENT_CHARS = 4_000


class Annotation(models.Model):
    group = models.ForeignKey(
        "samples.Group", models.CASCADE, related_name="%(class)ss", db_index=False
    )
    position = models.PositiveSmallIntegerField(null=True)  # None: the whole group
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True


class Thumb(Annotation):
    """One person's judgement."""

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
    """A word of the team's."""

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


class Comment(Annotation):
    user = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    text = models.TextField()

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["group", "position"], name="comment_of_group"),
        ]

    def __str__(self) -> str:
        return self.text[:80]


class Mention(models.Model):
    """A person whom a comment names."""

    comment = models.ForeignKey(Comment, models.CASCADE, related_name="mentions")
    # The shell of every page counts what its reader has not seen.
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
