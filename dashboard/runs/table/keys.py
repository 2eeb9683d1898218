"""The keys of the filter language, and what each is."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.db.models import DurationField, ExpressionWrapper, F, FloatField, Func
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Coalesce, Now, NullIf

CONFIG = "config."


def elapsed_seconds() -> Combinable:
    """From its start to its end, or to now."""
    took = ExpressionWrapper(
        Coalesce("finished_at", Now()) - F("started_at"), output_field=DurationField()
    )
    return Func(
        took, template="extract(epoch FROM %(expressions)s)", output_field=FloatField()
    )


def share_done() -> Combinable:
    done = Cast("last_step", FloatField())
    return done / NullIf(Cast("num_steps", FloatField()), 0.0)


TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "name": "name",
        "notes": "notes",
        "model": "model_label",
        "reward": "recipe_version__recipe__name",
        "worker": "worker",
    }
)
NUMBERS: Mapping[str, Any] = MappingProxyType(
    {
        "id": F("pk"),
        "step": F("last_step"),
        "steps": F("num_steps"),
        "progress": share_done(),
        "duration": elapsed_seconds(),
    }
)
MOMENTS: Mapping[str, str] = MappingProxyType(
    {"created": "created_at", "started": "started_at", "finished": "finished_at"}
)
# Key, what it is; in the order in which they are offered.
ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "name": "name of the run",
        "state": "queued, running, finished …; active, ended",
        "tag": "has the tag",
        "owner": "who launched it",
        "model": "model it starts from",
        "dataset": "trains or is evaluated on it",
        "reward": "reward recipe",
        "sweep": "launched together under this name",
        "notes": "text of its notes",
        "id": "number of the run",
        "step": "last step done",
        "steps": "steps asked for",
        "progress": "share of its steps done, 0 to 1",
        "duration": "90min, 2h, 1d",
        "created": "2026-11-01, or how long ago: 7d",
        "started": "2026-11-01, or how long ago: 7d",
        "finished": "2026-11-01, or how long ago: 7d",
        "worker": "that held it last",
        "starred": "by you",
        "locked": "kept from changes",
        "archived": "put out of the list",
        "trashed": "in the trash",
    }
)


def explain_unknown(key: str) -> str:
    near = difflib.get_close_matches(key, ABOUT, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return (
        f"There is no key {key!r}.{meant} A setting is written config.{key}, a metric "
        f"{key}.last (or best, min, max, mean)."
    )
