"""Hearing, between two steps, of settings that were changed meanwhile."""

from __future__ import annotations

from pathlib import Path

from trainer.config import Change, ChangeList, change_settings
from trainer.events import SettingsChanged
from trainer.state import Training

CHANGES = "changes.json"  # in the folder of the event log


def hear_changes(training: Training) -> None:
    """Take on the changes that are due behind the last step; each is heard once.

    One that another life of the run has heard of holds from the same step as then, so a
    resumed run repeats it exactly; it is told of again unless a checkpoint lies behind.
    """
    path, step = training.out / CHANGES, training.done_steps
    try:
        found = training.world.from_main(lambda: read_changes(path))
    except ValueError as error:
        if not training.has_unread_changes:
            training.has_unread_changes = True
            training.journal.warn("changes", f"{CHANGES} cannot be read: {error}")
        return
    for change in found:
        due = step if change.after_step is None else change.after_step
        if change.number in training.heard_changes or due > step:
            continue
        training.heard_changes.add(change.number)
        training.take_settings(change_settings(training.config, change.settings))
        if due == step:
            training.log.add(
                SettingsChanged,
                step=step,
                number=change.number,
                settings=change.settings,
            )
            training.log.flush()


def read_changes(path: Path) -> tuple[Change, ...]:
    """In their order; none where there is no such file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return ()
    changes = ChangeList.model_validate_json(text).changes
    return tuple(sorted(changes, key=lambda change: change.number))
