"""Seven of the trainer's warnings are rules of their own.

A team's rules of them begin as its rule of all warnings was: switched off, muted …
"""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.models.functions import Now

# By the warning's code: the rule's key, name, metric and kind.
MOVED = {
    "kl": ("kl_max", "KL of a token is very high", "kl/max", "above"),
    "kl_tail": ("kl_tail", "KL of 1 % of the tokens jumps", "kl/p99", "times_usual"),
    "unscorable": (
        "unscorable", "Groups without a score", "group/frac_unscorable", "above",
    ),
    "clipped": ("clipped", "Many tokens are clipped", "clip/frac", "above"),
    "mismatch": (
        "mismatch", "Sampling and training disagree", "mismatch/mean", "times_first",
    ),
    "stale": (
        "stale", "Completions are of an older policy", "staleness/kl", "above",
    ),
    "importance_masked": (
        "importance_masked", "Many tokens are masked", "importance/frac_masked", "above",
    ),
}  # fmt: skip
OPEN = ("firing", "acknowledged")


def move(apps: Any, schema_editor: Any) -> None:
    rules = apps.get_model("alerts", "Rule").objects
    for of_all in rules.filter(built_in="trainer"):
        kept = ("team_id", "is_enabled", "is_sent", "pauses_run", "muted_until")
        same = {name: getattr(of_all, name) for name in kept}
        rules.bulk_create(
            [
                rules.model(built_in=key, name=name, metric=metric, kind=kind, **same)
                for key, name, metric, kind in MOVED.values()
            ],
            ignore_conflicts=True,
        )
    alerts = apps.get_model("alerts", "Alert").objects
    ids = rules.filter(built_in="trainer").values("pk")
    raised = alerts.filter(rule__in=ids, code__in=MOVED, state__in=OPEN)
    raised.update(state="withdrawn", ended_at=Now())


class Migration(migrations.Migration):
    dependencies = [("alerts", "0002_kinds_of_rules")]

    operations = [
        migrations.RunPython(move, migrations.RunPython.noop, elidable=True),
    ]
