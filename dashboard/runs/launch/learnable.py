"""Reasons why a run cannot learn, found before its launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.runs.launch.forms import Launch
from dashboard.runs.launch.model_config import read_characters
from dashboard.runs.launch.verdict import verdict_of
from trainer.config import RunConfig

ROWS_READ = 20
MOST_UNREAD = 0.1  # of the characters: a sign or two do not hide the task
# What a probe samples by; a change of another part leaves its verdict true.
SAMPLED_BY = ("model", "data", "rollout", "reward")


def warn_of_characters(model: str, version: DatasetVersion) -> str:
    """A sentence where a small model has no tokens for the rows' texts; else ""."""
    known = read_characters(Path(model)) if model.startswith("/") else None
    if known is None:
        return ""
    rows = DatasetRow.objects.filter(version=version).order_by("position")[:ROWS_READ]
    text = "".join(_text_of(row.prompt) for row in rows)
    unread = [mark for mark in text if mark not in known]
    if len(unread) <= MOST_UNREAD * len(text):
        return ""
    some = " ".join(
        f"“{mark}”" if mark.isprintable() else repr(mark)
        for mark in [*dict.fromkeys(unread)][:5]
    )
    return (
        f"This model cannot learn from {version}: its tokenizer has no tokens for "
        f"{len(unread) / len(text):.0%} of the characters, such as {some}. "
        "Choose another model, or rows that it can read."
    )


def _text_of(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    return "".join(str(message.get("content", "")) for message in prompt)


def warn_of_probe(launch: Launch) -> str:
    """What the newest probe of this run said, where it cannot learn; else ""."""
    version = launch.dataset_version
    probe = (
        version.dataset.team.probes.filter(
            job__state="done",
            is_sample=False,
            dataset_version=version,
            recipe_version=launch.recipe_version,
        )
        .order_by("-id")
        .first()
    )
    if probe is None or not _is_of(launch.config, probe.config):
        return ""
    verdict = verdict_of(probe.config, probe.metrics)
    if verdict is None or verdict.answer != "cannot":
        return ""
    return f"{probe} says: {' '.join([verdict.sentence, *verdict.remedies])}"


def _is_of(config: RunConfig, probed: dict[str, Any]) -> bool:
    tree = config.model_dump(mode="json")
    return all(tree[part] == probed.get(part) for part in SAMPLED_BY)
