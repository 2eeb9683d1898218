"""The last word of an outside trainer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from django.db import transaction
from django.db.models import Max

from dashboard.datasets.models import Dataset, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.project.database import clean_text
from dashboard.runs.models import Run, RunState
from dashboard.runs.state import END_TIME, transition
from dashboard.samples.models import Group
from dashboard.training.lease import close_epoch
from trainer.events import Event, RunFailed, RunFinished

logger = logging.getLogger(__name__)
MAX_REASON = 20_000


def end_run(run: Run, last_word: Event) -> None:
    """Within the transaction that stored it."""
    if isinstance(last_word, RunFailed):
        error = clean_text(last_word.error)[:MAX_REASON]
        _move(run, RunState.FAILED, fail_reason=error)
    elif isinstance(last_word, RunFinished):
        _move(run, RunState.FINISHED)
    else:
        reason = "Its trainer ended before its last step."
        _move(run, RunState.STOPPED, stop_reason=reason)
    _keep_prompts(run)


def _move(run: Run, target: RunState, **fields: Any) -> None:
    is_moved = transition(
        run.pk,
        sources=[RunState.RUNNING],
        target=target,
        finished_at=END_TIME,
        **fields,
    )
    if is_moved:
        close_epoch(run.pk, run.epoch, f"{target} at step {run.last_step}")


def _keep_prompts(run: Run) -> None:
    """What its groups number becomes a dataset, as an import's prompts do.

    Not where numbers are missing: a row's place would be another prompt's.
    """
    groups = Group.objects.filter(run=run)
    highest = groups.aggregate(highest=Max("prompt_index"))["highest"]
    if highest is None:
        return
    num_prompts = groups.values("prompt_index").distinct().count()
    if num_prompts != highest + 1:
        return
    try:
        with transaction.atomic():
            version = _make_version(run)
    except ValueError as error:
        logger.warning("run %s: no dataset of its prompts: %s", run.pk, error)
        return
    Run.objects.filter(pk=run.pk).update(dataset_version=version)


def _make_version(run: Run) -> DatasetVersion:
    known = run.dataset_version.dataset if run.dataset_version else None
    if known is not None and known.trashed_at is not None:
        known = None
    return create_dataset_version(
        team=run.team,
        name=known.name if known else _free_name(run),
        rows=_rows(run),
        mapping={"prompt": "prompt", "answer": "answer", "columns": []},
        source={"kind": "run_import", "filename": f"prompts of {run.name}"},
        user=run.owner,
        dataset=known,
    )


def _rows(run: Run) -> Iterator[Row]:
    groups = Group.objects.filter(run=run).order_by("prompt_index", "step")
    first = groups.distinct("prompt_index").values_list("prompt", "answer")
    for prompt, answer in first.iterator(chunk_size=500):
        yield Row(prompt=prompt, answer=answer)


def _free_name(run: Run) -> str:
    name = f"Prompts of {run.name}"[:70]
    taken = set(Dataset.objects.filter(team=run.team).values_list("name", flat=True))
    numbered = (f"{name} {number}" for number in range(2, len(taken) + 3))
    return next(one for one in (name, *numbered) if one not in taken)
