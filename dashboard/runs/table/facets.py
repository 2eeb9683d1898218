"""What the shortcuts beside the search can choose from."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Q
from django.db.models.functions import Coalesce

from dashboard.accounts.models import Team
from dashboard.runs.models import EvaluationSet, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Facets:
    """Whatever the team's runs have."""

    owners: list[tuple[int, str]]
    models: list[str]
    datasets: list[tuple[int, str]]


def read_facets(team: Team) -> Facets:
    """One query over the distinct combinations, one over evaluation sets."""
    rows = (
        Run.objects.kept()
        .filter(team=team)
        .order_by()
        .values_list(
            "owner_id",
            Coalesce("owner__username", "owner__display_name"),
            "model_label",
            "dataset_version__dataset_id",
            "dataset_version__dataset__name",
        )
        .distinct()
    )
    owners, models, datasets = {}, set(), {}
    for owner_id, owner, model, dataset_id, dataset in rows:
        if owner_id is not None:
            owners[owner_id] = owner
        models.add(model)
        if dataset_id is not None:
            datasets[dataset_id] = dataset
    evaluated = EvaluationSet.objects.filter(run__team=team).values_list(
        "dataset_version__dataset_id", "dataset_version__dataset__name"
    )
    datasets |= dict(evaluated.distinct())
    return Facets(
        owners=sorted(owners.items(), key=lambda item: item[1]),
        models=sorted(models),
        datasets=sorted(datasets.items(), key=lambda item: item[1]),
    )


def count_put_away(team: Team) -> dict[str, int]:
    """Archived runs and runs in the trash; one query."""
    found: dict[str, int] = Run.objects.filter(team=team).aggregate(
        total=Count("pk"),
        archived=Count("pk", filter=Q(archived_at__isnull=False, trashed_at=None)),
        trashed=Count("pk", filter=Q(trashed_at__isnull=False)),
    )
    return found
