"""A run out of an import's files: all of it in one transaction, or nothing."""

from __future__ import annotations

import json
import re
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import IO, Any

import numpy as np
from django.db import transaction
from django.db.models.functions import Now

from cohort.lines import mean, metrics_of, signal_of, std
from dashboard.accounts.services import record
from dashboard.datasets.row import Row
from dashboard.datasets.services import open_draft
from dashboard.runs.models import Run, RunState
from dashboard.runs.state import END_TIME
from dashboard.supervision.external_ingest import create_prompts_version
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import Claim
from dashboard.transfers.import_formats import (
    LATEST_TIME,
    Item,
    Point,
    Sample,
    as_tree,
    from_tree,
    reward_of,
)
from dashboard.transfers.import_preview import Findings, digest_of
from dashboard.transfers.import_reader import read_files
from dashboard.transfers.models import RunImport
from trainer.algorithm.advantages import group_advantages, reward_matrix
from trainer.config import AdvantageConfig
from trainer.events import (
    Evaluated,
    Event,
    GroupScored,
    RunFinished,
    ScoredCompletion,
    StepFinished,
    TurnRecord,
)
from trainer.rewards.rule import message_text

EVENTS_AT_ONCE = 500
SHOWN_FILENAMES = 5
EVALUATED = re.compile(r"eval/([^/]+)/")  # of a held-out set
# A = (reward - mean) / (deviation + 1e-4), ddof 1: as TRL does, and verl but for ε.
TRL_ADVANTAGES = AdvantageConfig(ddof=1, eps=1e-4)


class ItemBuffer:
    """Items on disk, to be read step by step; files come in any order of steps.

    Memory holds sixteen bytes for each item: its step and its offset.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._steps = array("q")
        self._offsets = array("q")
        self._end = 0

    def add(self, item: Item) -> None:
        line = json.dumps(as_tree(item)).encode() + b"\n"
        self._steps.append(item.step)
        self._offsets.append(self._end)
        self._file.write(line)
        self._end += len(line)

    def __len__(self) -> int:
        return len(self._steps)

    def by_step(self) -> Iterator[tuple[int, list[Item]]]:
        """Order by rising step; within one in the order in which they were added."""
        self._file.flush()
        steps = np.frombuffer(self._steps, dtype=np.int64)
        offsets = np.frombuffer(self._offsets, dtype=np.int64)
        order = np.argsort(steps, kind="stable")
        sorted_offsets = zip(
            steps[order].tolist(), offsets[order].tolist(), strict=True
        )
        for step, items in groupby(sorted_offsets, key=lambda item: item[0]):
            yield step, [self._read(offset) for _, offset in items]

    def _read(self, offset: int) -> Item:
        self._file.seek(offset)
        return from_tree(json.loads(self._file.readline()))


def make_run(
    run_import: RunImport,
    *,
    on_read: Callable[[int], None],
    on_stored: Callable[[int, int], None],
    on_made: Callable[[Run], None],
) -> Run:
    """ValueError if the files differ from the findings that were shown.

    `on_read` is called with bytes, `on_stored` with steps and their number; `on_made`
    is called last in the transaction. Any exception rolls back everything.
    """
    choices = run_import.choices
    with open_draft() as file, open_draft() as prompts:
        buffer, findings = _read(run_import, ItemBuffer(file), on_read)
        if findings.num_refused != choices["leave_out"]:
            raise ValueError(
                f"The files have {findings.num_refused:,} invalid rows; "
                f"{choices['leave_out']:,} were found before. Start a new import."
            )
        num_steps = len(findings.steps)
        on_stored(0, num_steps)
        with transaction.atomic():
            run = _begin(run_import, findings)
            began = findings.first_time or time.time()
            events = EventWriter(run, run_import, Prompts(prompts), began)
            for number, (step, items) in enumerate(buffer.by_step(), start=1):
                events.add_step(step, items)
                on_stored(number, num_steps)
            events.end()
            version = (
                create_prompts_version(run, events.prompts.rows())
                if len(events.prompts)
                else None
            )
            Run.objects.filter(pk=run.pk).update(
                state=RunState.FINISHED,
                lease_until=None,
                finished_at=END_TIME,
                dataset_version=version,
            )
            record(run.team, run.owner, "run.imported", run, tools=run.source["tools"])
            on_made(run)
    return run


def _read(
    run_import: RunImport, buffer: ItemBuffer, on_read: Callable[[int], None]
) -> tuple[ItemBuffer, Findings]:
    findings = Findings()
    files = run_import.files.order_by("pk")
    wandb_run = run_import.choices.get("wandb_run")
    for row in read_files(files, wandb_run=wandb_run, on_read=on_read):
        if findings.add(row) is None and isinstance(row.item, Point | Sample):
            buffer.add(row.item)
    return buffer, findings


def _begin(run_import: RunImport, findings: Findings) -> Run:
    choices, result = run_import.choices, findings.as_json()
    facts = result["facts"]
    rules = [
        {"name": name, "weight": weight}
        for name, weight in choices["weights"]
        if weight is not None
    ]
    return Run.objects.create(
        team=run_import.team,
        name=choices["name"],
        owner=run_import.created_by,
        state=RunState.RUNNING,
        config={
            "reward": {
                "recipe": {"rules": rules},
                "right_from": choices["right_from"],
            },
            "checkpoint": {"keep_last": 0},
            **({"settings": facts["config"]} if facts.get("config") else {}),
        },
        model_label=choices["model"],
        num_steps=max(1, result["last_step"]),
        attempt=1,
        lease_until=Now() + timedelta(days=1),
        source={
            "tools": result["tools"],
            "num_files": result["num_files"],
            "num_bytes": result["num_bytes"],
            "filenames": [file["name"] for file in result["files"][:SHOWN_FILENAMES]],
            "num_rows": result["num_rows"],
            "num_left_out": result["num_refused"],
            "has_times": result["first_time"] is not None,
            "advantages": _advantages(result, computes=choices["computes_advantages"]),
            **({"place": facts["place"]} if facts else {}),
        },
    )


def _advantages(result: dict[str, Any], *, computes: bool) -> str:
    if result["num_advantages"]:
        return "files"
    return "computed" if computes else "unknown"


class Prompts:
    """Numbers of prompts, in the order in which they were sampled first."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._numbers: dict[bytes, int] = {}

    def number_of(self, sample: Sample) -> int:
        digest = digest_of(sample)
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = len(self._numbers)
            row = [sample.prompt, sample.answer]
            self._file.write(json.dumps(row).encode() + b"\n")
        return number

    def __len__(self) -> int:
        return len(self._numbers)

    def rows(self) -> Iterator[Row]:
        self._file.seek(0)
        for line in self._file:
            prompt, answer = json.loads(line)
            yield Row(prompt=prompt, answer=answer)


@dataclass(slots=True)
class EventWriter:
    """The events of the run's only attempt, ingested as they come."""

    run: Run
    run_import: RunImport
    prompts: Prompts
    time: float  # of the current step; without times in the files, of the previous one
    _line: int = 0
    _step: int = 0
    _events: list[Event] = field(default_factory=list)

    def add_step(self, step: int, items: list[Item]) -> None:
        points = [item for item in items if isinstance(item, Point)]
        for point in points:
            if point.time is not None and 0 <= point.time < LATEST_TIME:
                self.time = point.time
        self._step = step
        groups = list(self._groups([i for i in items if isinstance(i, Sample)]))
        logged: dict[str, float | None] = {}
        for point in points:  # if a step is logged twice, the last value counts
            logged |= point.values
        computed = metrics_of([group.model_dump() for group in groups])
        # A table with one completion a prompt is a sample of the step.
        is_whole = all(len(group.completions) > 1 for group in groups)
        metrics = logged | computed if is_whole else computed | logged
        by_set: dict[str, dict[str, float | None]] = defaultdict(dict)
        for name, value in metrics.items():
            held_out = EVALUATED.match(name)
            by_set[held_out[1] if held_out else ""][name] = value
        of_step = by_set.pop("", {})
        self._events += groups
        if of_step or step > 0:  # before the first step there are evaluations alone
            event = StepFinished(**self._next_place(), metrics=of_step)
            self._events.append(event)
        for name, values in by_set.items():
            self._events.append(
                Evaluated(
                    **self._next_place(),
                    name=name,
                    num_prompts=0,  # unknown
                    samples_per_prompt=0,
                    metrics=values,
                )
            )
        if len(self._events) >= EVENTS_AT_ONCE:
            self._ingest()

    def end(self) -> None:
        self._events.append(RunFinished(**self._next_place()))
        self._ingest()

    def _groups(self, samples: list[Sample]) -> Iterator[GroupScored]:
        by_prompt: dict[int, list[Sample]] = {}
        for sample in samples:
            by_prompt.setdefault(self.prompts.number_of(sample), []).append(sample)
        for number, group in by_prompt.items():
            yield self._group(number, group)

    def _group(self, prompt_index: int, samples: Sequence[Sample]) -> GroupScored:
        choices = self.run_import.choices
        weights = dict(choices["weights"])
        rewards = [reward_of(sample, weights) for sample in samples]
        scored = [reward for reward in rewards if reward is not None]
        advantages = [sample.advantage for sample in samples]
        if choices["computes_advantages"] and all(
            value is None for value in advantages
        ):
            matrix = group_advantages(reward_matrix([rewards]), TRL_ADVANTAGES)
            advantages = [*matrix[0].tolist()]
        prompt = samples[0].prompt
        if not isinstance(prompt, str):
            prompt = "\n\n".join(f"{m['role']}: {message_text(m)}" for m in prompt)
        return GroupScored(
            **self._next_place(),
            prompt_index=prompt_index,
            prompt=prompt,
            answer=samples[0].answer,
            reward_mean=mean(scored),
            reward_std=std(scored),
            signal=signal_of(
                scored,
                right_from=choices["right_from"],
                lowest=self.run_import.findings["lowest"],
            ),
            completions=[
                ScoredCompletion(
                    text=sample.completion,
                    num_tokens=sample.num_tokens,
                    end_reason=sample.end_reason,
                    reward=reward,
                    rules={
                        name: score
                        for name, score in sample.scores.items()
                        if weights.get(name) is not None
                    },
                    advantage=advantage,
                    mean_logprob=sample.mean_logprob,
                    turns=[TurnRecord.model_validate(turn) for turn in sample.turns],
                )
                for sample, reward, advantage in zip(
                    samples, rewards, advantages, strict=True
                )
            ],
        )

    def _next_place(self) -> dict[str, Any]:
        """Return the fields of the next event that say where it stands in the log."""
        self._line += 1
        place = {"line": self._line, "attempt": 1, "time": self.time}
        return place | {"step": self._step}

    def _ingest(self) -> None:
        claim = Claim(run_id=self.run.pk, attempt=1)
        # Alerts are for those who can still do something.
        ingest(claim, self._events, observes=False)
        self._events = []
