"""Scoring for a page, in a child process with a timeout; and this machine's sandbox.

A rule may compute for seconds or call a grader that hangs. A child process can be
killed at the timeout, a thread of the web process cannot. Rules that call models are
scored in the web process, which has the keys, and only where a person asks for it.
"""

from __future__ import annotations

import atexit
import queue
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dashboard.datasets.models import DatasetRow
from dashboard.jobs.slots import slot
from dashboard.web.overload import Busy
from trainer.rewards.child import Child, NoReply
from trainer.rewards.judge import START_SECONDS, TIMED_OUT, limited_to
from trainer.rewards.rule import Sample, message_text, split_prefill
from trainer.rewards.rules import RULES
from trainer.rewards.sandbox.levels import NAMES
from trainer.rewards.sandbox.pool import asking_for
from trainer.rewards.sandbox.slot import SandboxStatus, find_sandbox
from trainer.rewards.scoring import Score, add_usage, score_all
from trainer.rewards.spec import Recipe, judges_several
from trainer.rewards.workers import sample_fields

NUM_PROCESSES = 2  # of each web process
PAGE_SECONDS = 10.0  # to look for a sandbox on a busy machine
BUSY = "All scoring processes are busy. Try again in a moment."
SEPARATOR = re.compile(r"^---[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Trial:
    """A completion's score and its time; or why there is none."""

    score: Score | None
    seconds: float = 0.0
    rule_seconds: dict[str, float] = field(default_factory=dict)
    problem: str = ""


def split_completions(text: str) -> list[str]:
    """Split at lines of three dashes."""
    parts = SEPARATOR.split(text.replace("\r\n", "\n"))
    # The separator's own line ends are not part of a completion.
    trimmed = [part.removeprefix("\n").removesuffix("\n") for part in parts]
    return [part for part in trimmed if part.strip()]


def as_sample(row: DatasetRow, completion: str) -> Sample:
    prompt = row.prompt_value
    is_chat = not isinstance(prompt, str)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    messages, begun = split_prefill(prompt)
    return Sample(
        message_text(messages[-1]) if messages else "",
        completion,
        row.answer_value,
        row.columns,
        messages=messages,
        is_chat=is_chat,
        begun=begun,
    )


def calls_models(recipe: Recipe) -> bool:
    """Tell whether rules call models, which may cost money."""
    return any(RULES[rule.kind].batching is not None for rule in recipe.rules)


def ask_models(
    recipe: Recipe,
    groups: Sequence[Sequence[Sample]],
    *,
    seconds: float,
    owner: str = "",
) -> list[list[Trial]]:
    """`try_groups` that calls the models of rules, here: this process has the keys."""
    deadline = time.monotonic() + seconds
    tried = []
    for group in groups:
        begin = time.monotonic()
        if begin > deadline:
            tried.append([Trial(None, problem=TIMED_OUT) for _ in group])
            continue
        with limited_to(deadline - begin), asking_for(owner):
            scores = score_all(recipe, group)
        taken = (time.monotonic() - begin) / max(1, len(group))
        tried.append([Trial(score, taken) for score in scores])
    return tried


def usage_of(trials: Iterable[Trial]) -> dict[str, dict[str, int]]:
    """Add up calls and tokens of judges, by rule."""
    return add_usage(trial.score for trial in trials if trial.score)


def try_groups(
    recipe: Recipe,
    groups: Sequence[Sequence[Sample]],
    *,
    seconds: float,
    owner: str = "",
    reads_rows: bool = False,
) -> list[list[Trial]]:
    """Try each completion; TIMED_OUT after the timeout.

    Args:
        groups: the completions of each row.
        seconds: timeout for all of them.
        owner: of the sandbox for rules with code.
        reads_rows: only check whether rules can score the rows; no score has a total.
    """
    if any(judges_several(rule) for rule in recipe.rules):
        parts = [list(group) for group in groups if group]
    else:  # each completion has its own reply
        parts = [[sample] for group in groups for sample in group]
    trials = iter(_try(recipe, parts, seconds, owner, reads_rows))
    return [[next(trials) for _ in group] for group in groups]


def try_samples(
    recipe: Recipe, samples: Sequence[Sample], *, seconds: float, owner: str = ""
) -> list[Trial]:
    """`try_groups` of independent completions."""
    groups = [[sample] for sample in samples]
    tried = try_groups(recipe, groups, seconds=seconds, owner=owner)
    return [trial for (trial,) in tried]


def _try(
    recipe: Recipe,
    parts: Sequence[Sequence[Sample]],
    seconds: float,
    owner: str,
    reads_rows: bool,
) -> list[Trial]:
    num_samples = sum(map(len, parts))
    if not parts:
        return []
    deadline = time.monotonic() + seconds
    request = {
        "recipe": recipe.model_dump(mode="json"),
        "owner": owner,
        "reads_rows": reads_rows,
        "groups": [[sample_fields(sample) for sample in part] for part in parts],
    }
    try:
        # The slot first: a team that waits for one holds no process.
        with slot(wait_seconds=seconds), _process(deadline) as process:
            return process.score(request, list(map(len, parts)), deadline=deadline)
    except Busy:
        return [Trial(None, problem=BUSY)] * num_samples


@contextmanager
def _process(deadline: float) -> Iterator[_Process]:
    seconds = max(0.0, deadline - time.monotonic())
    try:
        process = _idle.get(timeout=seconds)
    except queue.Empty:
        raise Busy(seconds) from None
    try:
        yield process
    finally:
        _idle.put(process)


class _Process:
    """A child process, restarted if needed. For one thread at a time."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def score(
        self, request: dict[str, Any], sizes: Sequence[int], *, deadline: float
    ) -> list[Trial]:
        """Try each completion, of groups of these sizes."""
        trials: list[Trial] = []
        num_samples = sum(sizes)
        try:
            child, waited = self._running()
            deadline += waited  # starting the child does not count
            seconds_left = deadline - time.monotonic()
            if seconds_left > 0:
                child.write(request | {"seconds": seconds_left})
            for size in sizes:
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0:
                    break
                reply = child.read(timeout_seconds=seconds_left)
                if "problem" in reply:
                    trials += [Trial(None, problem=reply["problem"])] * size
                    continue
                trials += [
                    Trial(Score(**score), reply["seconds"], reply["rule_seconds"])
                    for score in reply["scores"]
                ]
        except NoReply as error:
            is_late = time.monotonic() >= deadline
            message = TIMED_OUT if is_late else f"The scoring process failed: {error}."
            trials.append(Trial(None, problem=message))
        if len(trials) < num_samples or trials[-1].problem:
            self.end()  # late replies must not reach the next request
        return trials + [Trial(None, problem=TIMED_OUT)] * (num_samples - len(trials))

    def _running(self) -> tuple[Child, float]:
        if self._child is not None and self._child.is_alive():
            return self._child, 0.0
        self.end()
        begin = time.monotonic()
        self._child = Child("trainer.rewards.scoring_process", "trial")
        self._child.read(timeout_seconds=START_SECONDS)
        return self._child, time.monotonic() - begin

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None


_processes = [_Process() for _ in range(NUM_PROCESSES)]
_idle: queue.LifoQueue[_Process] = queue.LifoQueue()  # the last one used is running
for _each in _processes:
    _idle.put(_each)


@atexit.register
def _end_all() -> None:
    for process in _processes:
        process.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A machine's sandbox for pages, stored with a worker as JSON."""

    level: str | None
    name: str  # mechanism of the level; "" without a sandbox
    has_group: bool
    problem: str  # why there is no sandbox, and what to do


def sandbox_here(*, timeout_seconds: float = PAGE_SECONDS) -> Sandbox:
    """Cached; without a sandbox, for a minute."""
    return describe(find_sandbox(timeout_seconds=timeout_seconds))


def describe(status: SandboxStatus) -> Sandbox:
    return Sandbox(
        level=status.level,
        name=NAMES[status.level] if status.level else "",
        has_group=status.has_group,
        problem="" if status.level else status.sentence,
    )
