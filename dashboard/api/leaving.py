"""Who leaves a team takes no token along: none works again after another invitation."""

from __future__ import annotations

from typing import Any

from django.db.models.signals import post_delete
from django.dispatch import receiver
from django.utils import timezone

from dashboard.accounts.models import Membership
from dashboard.api.models import ApiToken


@receiver(post_delete, sender=Membership)
def revoke_tokens(*, instance: Membership, **_kwargs: Any) -> None:
    """The entry in the audit log is that of the membership."""
    kept = ApiToken.objects.filter(
        user=instance.user_id, team=instance.team_id, revoked_at=None
    )
    kept.update(revoked_at=timezone.now())
