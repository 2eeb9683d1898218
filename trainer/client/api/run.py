"""A run: what is known of it, what it measured, and what may be asked of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trainer.client.api.records import (
    Group,
    GroupDetail,
    Person,
    Point,
    VersionRef,
    read,
)
from trainer.client.http import Progress, Refused

if TYPE_CHECKING:
    from trainer.client.api.client import Client

LOOK_SECONDS = 2.0
OUTAGE_SECONDS = 900.0  # a server that is away longer ends the watch


def follow(
    client: Client, run_id: int, *, from_step: int = 0, every_seconds: float
) -> Iterator[tuple[RunDetail, list[Point]]]:
    """The run and its points that are new, until it has ended.

    Held-out scores may come after their step, as another point of it. A server that is
    away meanwhile is waited for.
    """
    step, names = from_step, set[str]()  # the last one that was given, and what of it
    patience = 0.0  # one that never answered is more likely a wrong address

    def look() -> tuple[RunDetail, Any]:
        run = client.runs.get(run_id)  # first: points of an ended run are all there
        if step > run.num_steps:
            return run, {"points": [], "next_cursor": None}
        return run, run.page_of_metrics(first_step=step)

    while True:
        run, page = client.retry(look, for_seconds=patience)
        patience = OUTAGE_SECONDS
        points = []
        for point in (read(Point, tree) for tree in page["points"]):
            known = names if point.step == step else set()
            new = {n: v for n, v in point.values.items() if n not in known}
            step, names = point.step, known | point.values.keys()
            if new:
                points.append(replace(point, values=new))
        yield run, points
        if page["next_cursor"] is not None:
            continue
        if run.has_ended:
            return
        time.sleep(every_seconds)


ENDED = frozenset({"finished", "stopped", "failed"})
CONFLICT = 409
POINTS = 2_000  # at once


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """As it was when it was asked for; `refresh()` asks again."""

    client: Client = field(compare=False)
    id: int
    name: str
    state: str
    owner: Person | None
    model: str
    dataset_version: VersionRef | None
    recipe_version: VersionRef | None
    sweep_id: int | None
    tags: list[str]
    last_step: int
    num_steps: int
    last_reward: float | None
    best_reward: float | None
    is_imported: bool
    is_locked: bool
    is_archived: bool
    is_trashed: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    def __repr__(self) -> str:
        steps = f"step {self.last_step:,} of {self.num_steps:,}"
        return f"<Run {self.id} {self.name!r}: {self.state}, {steps}>"

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def address(self) -> str:
        """Of its page."""
        return f"{self.client.address}/runs/{self.id}/"

    def refresh(self) -> RunDetail:
        return self.client.runs.get(self.id)

    def metrics(
        self,
        *names: str,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> list[Point]:
        """Every point of these metrics, of all without a name; held-out scores too."""
        found: list[Point] = []
        steps = {"first_step": first_step, "last_step": last_step}
        cursor: str | None = ""
        while cursor is not None:
            page = self.page_of_metrics(*names, cursor=cursor, **steps)
            found += [read(Point, one) for one in page["points"]]
            cursor = page["next_cursor"]
        return found

    def page_of_metrics(self, *names: str, **query: Any) -> Any:
        """As many points as come at once, and where the next ones begin."""
        path = f"/runs/{self.id}/metrics"
        return self.client.get(path, names=",".join(names), limit=POINTS, **query)

    def groups(
        self,
        step: int | None = None,
        *,
        signal: str | None = None,
        limit: int | None = None,
    ) -> list[Group]:
        """Of one step, or of all; `signal` leaves those of one kind, such as mixed."""
        path, query = f"/runs/{self.id}/groups", {"step": step, "signal": signal}
        found = self.client.iterate(path, limit=limit, **query)
        return [read(Group, tree) for tree in found]

    def group(self, step: int, prompt_index: int) -> GroupDetail:
        """With its completions."""
        path = f"/runs/{self.id}/groups/{step}/{prompt_index}"
        return read(GroupDetail, self.client.get(path))

    def watch(
        self, *, from_step: int = 0, every_seconds: float = LOOK_SECONDS
    ) -> Iterator[Point]:
        """Each step as it is done, until the run ends; those that are done, at once.

        Held-out scores that come after their step come as another point of it. What a
        resumed run does again is not told again.
        """
        looks = follow(
            self.client, self.id, from_step=from_step, every_seconds=every_seconds
        )
        for _, points in looks:
            yield from points

    def wait(self, *, every_seconds: float = LOOK_SECONDS) -> RunDetail:
        """Until it has ended; its points are not read."""
        never = 2**31 - 1
        looks = follow(
            self.client, self.id, from_step=never, every_seconds=every_seconds
        )
        for run, _ in looks:
            last = run
        return last

    def export(
        self,
        path: str | Path,
        *,
        what: str = "",
        first_step: int | None = None,
        last_step: int | None = None,
        overwrite: bool = False,
        on_progress: Progress | None = None,
    ) -> Path:
        """To a file, in the format that its name ends with.

        metrics or completions as .csv, .jsonl or .parquet; tensorboard as .zip.
        `what` says which, with or without an ending; without it, the file's name, and
        else metrics.
        """
        target = Path(path)
        return self.client.download(
            f"/runs/{self.id}/files/{quote(file_name(target, what), safe='')}",
            target,
            overwrite=overwrite,
            on_progress=on_progress,
            first_step=first_step,
            last_step=last_step,
        )

    def download_checkpoint(
        self,
        name: str,
        path: str | Path = "",
        *,
        overwrite: bool = False,
        on_progress: Progress | None = None,
    ) -> Path:
        """The model of one, as a tar with a folder that transformers loads.

        `name` is such as step-000050-attempt-1. `path` is a file or a folder that is
        there; without it, the file is placed here.
        """
        target = Path(path)
        if target.is_dir():
            target /= f"run-{self.id}-{name}.tar"
        return self.client.download(
            f"/runs/{self.id}/checkpoints/{quote(name, safe='')}/model.tar",
            target,
            overwrite=overwrite,
            on_progress=on_progress,
        )

    def stop(self) -> None:
        """It ends after the step it is at, with a checkpoint. Refused says why not."""
        self._ask("stop")

    def cancel(self) -> None:
        """At once, without a checkpoint."""
        self._ask("cancel")

    def pause(self) -> None:
        self._ask("pause")

    def resume(self) -> None:
        """A paused run; `extend` continues one that has ended."""
        self._ask("resume")

    def extend(self, num_steps: int | None = None) -> None:
        """Train to step `num_steps`; None: to the last step that it had.

        A stopped or finished run is queued again, from its last checkpoint.
        """
        last = self.num_steps if num_steps is None else num_steps
        self.client.post(f"/runs/{self.id}/extend", {"num_steps": last})

    def _ask(self, verb: str) -> None:
        answer = self.client.post(f"/runs/{self.id}/{verb}")
        if not answer["done"]:
            raise Refused(CONFLICT, answer["detail"], answer)


def file_name(path: Path, what: str = "") -> str:
    """Of the file on the server, which says what there is.

    >>> file_name(Path("run-7.csv")), file_name(Path("completions.parquet"))
    ('metrics.csv', 'completions.parquet')
    >>> file_name(Path("-"), "metrics.jsonl")
    'metrics.jsonl'
    """
    if "." in what:
        return what
    named = (one for one in ("completions", "tensorboard") if one in path.stem.lower())
    return f"{what or next(named, 'metrics')}{path.suffix.lower()}"


@dataclass(frozen=True, kw_only=True, repr=False)
class RunDetail(Run):
    """With its settings and notes."""

    notes: str
    fail_reason: str
    pause_reason: str
    stop_reason: str
    cloned_from_id: int | None
    forked_from_id: int | None
    fork_step: int | None
    attempt: int
    config: dict[str, Any]

    @property
    def reason(self) -> str:
        """Why it failed, stopped or paused, as far as anybody said."""
        of = {
            "failed": self.fail_reason,
            "stopped": self.stop_reason,
            "paused": self.pause_reason,
        }
        return of.get(self.state, "")
