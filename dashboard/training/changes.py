"""Changed settings on their way to a run's trainer, and what it says of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dashboard.runs.models import Run, SettingChange
from dashboard.training.freeze import write_durably
from trainer.config import Change, ChangeList
from trainer.events import Event, SettingsChanged


def freeze_changes(run: Run, path: Path) -> None:
    """What the trainer of one life hears of, as far as anybody has asked for it."""
    changes = run.changes.order_by("number").values_list(
        "number", "heard_step", "after"
    )
    listed = [
        Change(number=number, after_step=heard, settings=after)
        for number, heard, after in changes
    ]
    if not listed:
        return
    text = ChangeList(changes=tuple(listed)).model_dump_json(indent=2)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text)


def note_changes(run_id: int, events: Iterable[Event]) -> None:
    """At which step each was heard of first; every later life repeats it there."""
    for event in events:
        if isinstance(event, SettingsChanged):
            unheard = SettingChange.objects.filter(run_id=run_id, heard_step=None)
            unheard.filter(number=event.number).update(heard_step=event.step)
