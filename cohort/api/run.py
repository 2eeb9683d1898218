"""A run: its state, metrics, groups, files and actions; and `client.runs`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal
from urllib.parse import quote

from cohort.api.connection import Connection
from cohort.api.frames import Records, cell_html, import_library, row_html
from cohort.api.records import (
    Checkpoint,
    DatasetVersion,
    FoundCompletion,
    Group,
    GroupDetail,
    Person,
    Point,
    VersionRef,
    read,
)
from cohort.http import Progress, Refused, Value

POLL_SECONDS = 2.0
OUTAGE_SECONDS = 900.0  # a longer outage ends the watch
NOT_FOUND = 404


def follow(
    client: Connection, run_id: int, *, from_step: int = 0, every_seconds: float
) -> Iterator[tuple[RunDetail, list[Point]]]:
    """Yield the run and its new points, until it has ended.

    Held-out scores may come later than their step, as another point of it. Waits for a
    server that is unreachable meanwhile.
    """
    step, names = from_step, set[str]()  # last step yielded, and its metrics
    retry_seconds = 0.0  # at first: no response more likely means a wrong URL

    def poll() -> tuple[RunDetail, Any]:
        run = Runs(client).get(run_id)  # first: an ended run has all its points
        if step > run.num_steps:
            return run, {"points": [], "next_cursor": None}
        return run, run.page_of_metrics(first_step=step)

    while True:
        run, page = client.retry(poll, for_seconds=retry_seconds)
        retry_seconds = OUTAGE_SECONDS
        points = []
        for point in (read(Point, tree) for tree in page["points"]):
            reported = names if point.step == step else set()
            new = {n: v for n, v in point.values.items() if n not in reported}
            step, names = point.step, reported | point.values.keys()
            if new:
                points.append(replace(point, values=new))
        yield run, points
        if page["next_cursor"] is not None:
            continue
        if run.has_ended:
            return
        time.sleep(every_seconds)


ENDED = frozenset({"finished", "stopped", "failed"})
POINTS = 2_000  # per page
# Of the search of completions.
FILTERS = {
    "text": "contain this text",
    "match": "text (default), or words: whole words of the text only",
    "outcome": "right, not_right or unscored",
    "end": "stop, length, turns, done, failed, timeout or unknown",
    "surprise": "right_low, high_short or near",
    "first_step": "from this step on",
    "last_step": "up to this step",
    "prompt": "of this prompt index",
    "min_reward": "lowest reward",
    "max_reward": "highest reward",
    "min_advantage": "lowest advantage",
    "max_advantage": "highest advantage",
    "min_length": "fewest tokens",
    "max_length": "most tokens",
    "min_turns": "fewest turns",
    "min_waited": "fewest seconds of the environment",
    "tools": "failed: a tool call failed",
    "rule": "rule of min_score and max_score",
    "min_score": "lowest score of the rule",
    "max_score": "highest score of the rule",
    "tag": "with this tag",
    "mark": "any, good, bad, tagged or commented",
    "by": "me: marks of the token's person only",
    "sort": "step, reward, advantage or length; -KEY descends (default: -step)",
}
Table = Literal["metrics", "completions"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """A snapshot of a run; `refresh()` reads it again."""

    COLUMNS: ClassVar = (
        "id",
        "name",
        "state",
        "last_step",
        "num_steps",
        "last_reward",
        "best_reward",
        "model",
        "owner",
        "created_at",
    )
    client: Connection = field(compare=False)
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

    def _repr_html_(self) -> str:
        parts = {
            "State": f"{self.state}, step {self.last_step:,} of {self.num_steps:,}",
            "Reward": self.last_reward,
            "Best reward": self.best_reward,
            "Model": self.model,
            "Dataset": self.dataset_version,
            "Reward recipe": self.recipe_version,
            "Tags": self.tags,
            "Owner": self.owner,
            "Created": self.created_at,
        }
        title = cell_html(f"Run {self.id}: {self.name}", self.address)
        rows = "".join(row_html(map(cell_html, part)) for part in parts.items())
        return f"<p><strong>{title}</strong></p><table><tbody>{rows}</tbody></table>"

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def address(self) -> str:
        """URL of its page."""
        return f"{self.client.address}/runs/{self.id}/"

    def refresh(self) -> RunDetail:
        return Runs(self.client).get(self.id)

    def metrics(
        self,
        *names: str,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> list[Point]:
        """Return every point of these metrics and held-out scores; no names: of all."""
        points: list[Point] = []
        steps = {"first_step": first_step, "last_step": last_step}
        cursor: str | None = ""
        while cursor is not None:
            page = self.page_of_metrics(*names, cursor=cursor, **steps)
            points += [read(Point, tree) for tree in page["points"]]
            cursor = page["next_cursor"]
        return points

    def page_of_metrics(self, *names: str, **query: Any) -> Any:
        """Return one page of points, and the cursor of the next."""
        path = f"/runs/{self.id}/metrics"
        return self.client.get(path, names=",".join(names), limit=POINTS, **query)

    def groups(
        self,
        step: int | None = None,
        *,
        signal: str | None = None,
        limit: int | None = None,
    ) -> list[Group]:
        """List groups of one step, or of all; `signal` filters, such as "mixed"."""
        path, query = f"/runs/{self.id}/groups", {"step": step, "signal": signal}
        trees = self.client.iterate(path, limit=limit, **query)
        return Records(read(Group, tree) for tree in trees)

    def group(self, step: int, prompt_index: int) -> GroupDetail:
        """Get a group with its completions."""
        path = f"/runs/{self.id}/groups/{step}/{prompt_index}"
        return read(GroupDetail, self.client.get(path))

    def completions(
        self, *, limit: int | None = None, **filters: Value
    ) -> Iterator[FoundCompletion]:
        """Yield completions that match, newest step first, read page by page.

            for completion in run.completions(text="I think", outcome="right"):
                print(completion.step, completion.reward, completion.text)

        `filters` are those of the run's page Search: see FILTERS.
        """
        if unknown := sorted(filters.keys() - FILTERS.keys()):
            raise ValueError(
                f"Unknown filter {unknown[0]!r}. Filters are {', '.join(FILTERS)}."
            )
        path = f"/runs/{self.id}/completions"
        trees = self.client.iterate(path, limit=limit, **filters)
        return (read(FoundCompletion, tree) for tree in trees)

    def watch(
        self, *, from_step: int = 0, every_seconds: float = POLL_SECONDS
    ) -> Iterator[Point]:
        """Yield each step when it is done, until the run ends; earlier steps at once.

        Held-out scores that come later than their step are another point of it. Steps
        that a resumed run repeats are not yielded again.
        """
        updates = follow(
            self.client, self.id, from_step=from_step, every_seconds=every_seconds
        )
        for _, points in updates:
            yield from points

    def wait(self, *, every_seconds: float = POLL_SECONDS) -> RunDetail:
        """Wait until the run has ended; its points are not read."""
        never = 2**31 - 1
        updates = follow(
            self.client, self.id, from_step=never, every_seconds=every_seconds
        )
        for run, _ in updates:
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
        """Export to a file, in the format of its extension.

        metrics or completions as .csv, .jsonl or .parquet; tensorboard as .zip;
        pass-rates as .jsonl. `what` chooses, with or without an extension; by default
        the file name, else metrics.
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

    def to_pandas(
        self,
        what: Table = "metrics",
        *,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Any:
        """Return metrics or completions as a DataFrame; needs pandas and pyarrow."""
        pandas = import_library("pandas", "pyarrow")
        return self._load(pandas.read_parquet, what, first_step, last_step)

    def to_polars(
        self,
        what: Table = "metrics",
        *,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Any:
        """Return metrics or completions as a DataFrame of Polars, which it needs."""
        polars = import_library("polars")
        return self._load(polars.read_parquet, what, first_step, last_step)

    def to_dataset(
        self,
        what: Table = "completions",
        *,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Any:
        """Return metrics or completions as a Dataset of Hugging Face `datasets`."""
        datasets = import_library("datasets")

        def load(file: Path) -> Any:
            return datasets.Dataset.from_parquet(
                str(file), cache_dir=str(file.parent), keep_in_memory=True
            )

        return self._load(load, what, first_step, last_step)

    def _load(
        self,
        read: Callable[[Path], Any],
        what: str,
        first_step: int | None,
        last_step: int | None,
    ) -> Any:
        """Read a temporary export, which is deleted."""
        if what not in ("metrics", "completions"):
            raise ValueError(f"Pass what='metrics' or 'completions'; got {what!r}.")
        with TemporaryDirectory(prefix="cohort-") as folder:
            file = Path(folder) / f"{what}.parquet"
            return read(self.export(file, first_step=first_step, last_step=last_step))

    def checkpoints(self) -> list[Checkpoint]:
        """List them newest first, also those whose files were deleted."""
        items = self.client.get(f"/runs/{self.id}/checkpoints")["items"]
        return Records(read(Checkpoint, item) for item in items)

    def find_checkpoint(self, which: str) -> Checkpoint:
        """Find the best, the newest, or the one of this name or step."""
        there = [c for c in self.checkpoints() if c.is_there]
        for checkpoint in there:
            is_best = which == "best" and checkpoint.is_best
            if is_best or which in ("newest", checkpoint.name, str(checkpoint.step)):
                return checkpoint
        raise ValueError(
            f"Run {self.id} has no checkpoint {which!r}. It has "
            f"{', '.join(c.name for c in there) or 'none'}."
        )

    def download_checkpoint(
        self,
        name: str,
        path: str | Path = "",
        *,
        overwrite: bool = False,
        on_progress: Progress | None = None,
    ) -> Path:
        """Return its model as a tar file with a folder for `from_pretrained`.

        `name`: for example step-000050-attempt-1. `path`: a file or an existing folder;
        by default the current one.
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
        """Stop after the current step, with a checkpoint."""
        self._act("stop")

    def cancel(self) -> None:
        """Stop at once, without a checkpoint."""
        self._act("cancel")

    def pause(self) -> None:
        self._act("pause")

    def resume(self) -> None:
        """Continue a paused run; `extend` continues one that has ended."""
        self._act("resume")

    def extend(self, num_steps: int | None = None) -> None:
        """Train to step `num_steps`; None: to the planned last step.

        A stopped or finished run is queued again from its last checkpoint.
        """
        last = self.num_steps if num_steps is None else num_steps
        self.client.post(f"/runs/{self.id}/extend", {"num_steps": last})

    def _act(self, verb: str) -> None:
        self.client.act(f"/runs/{self.id}/{verb}")


def file_name(path: Path, what: str = "") -> str:
    """Return the file's name on the server.

    >>> file_name(Path("run-7.csv")), file_name(Path("completions.parquet"))
    ('metrics.csv', 'completions.parquet')
    >>> file_name(Path("pass-rates-run-1.jsonl"))
    'pass-rates.jsonl'
    >>> file_name(Path("-"), "metrics.jsonl")
    'metrics.jsonl'
    """
    if "." in what:
        return what
    names = ("completions", "tensorboard", "pass-rates")
    kinds = (kind for kind in names if kind in path.stem.lower())
    return f"{what or next(kinds, 'metrics')}{path.suffix.lower()}"


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
        """Why it failed, stopped or paused; empty if unknown."""
        reasons = {
            "failed": self.fail_reason,
            "stopped": self.stop_reason,
            "paused": self.pause_reason,
        }
        return reasons.get(self.state, "")


class Runs:
    def __init__(self, client: Connection) -> None:
        self._client = client

    def list(
        self, q: str = "", *, sort: str = "-num", limit: int | None = 50
    ) -> list[Run]:
        """Runs that match a filter of the run list, such as `state = running`."""
        trees = self._client.iterate("/runs", limit=limit, q=q, sort=sort)
        return Records(read(Run, tree, client=self._client) for tree in trees)

    def get(self, run_id: int) -> RunDetail:
        """Get a run with its settings and notes."""
        try:
            tree = self._client.get(f"/runs/{int(run_id)}")
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
            message = f"Run {run_id} not found in the token's team. (HTTP {NOT_FOUND})"
            raise Refused(NOT_FOUND, message, error.problem) from None
        return read(RunDetail, tree, client=self._client)

    def launch(
        self,
        start: str = "",
        *,
        name: str | None = None,
        is_scaled: bool = False,
        model: str | None = None,
        dataset: str | int | DatasetVersion | None = None,
        recipe: str | int | None = None,
        held_out: Mapping[str, str | int | DatasetVersion] | None = None,
        settings: Mapping[str, Value] | None = None,
        toml: str | None = None,
        confirm: bool = False,
        key: str = "",
    ) -> RunDetail:
        """Validate and queue a run. Omitted arguments keep the values of `start`.

        start     key of a preset, see `/presets`; "run-7" to clone a run; or
                  "fork-7-step-000050-attempt-1" to continue from a checkpoint
        is_scaled scale the preset down to a small machine
        dataset   a version, its id, "sums" or "sums@2" (version 2); default: that of
                  `start`, or the team's only dataset
        recipe    likewise, a reward recipe
        held_out  evaluation sets: name to dataset, as above
        model     model folder or Hugging Face model ID; default: that of `start`, or
                  a starter model
        settings  changed settings by path: {"optim.learning_rate": 1e-6}
        toml      the engine's TOML instead of `start`; `settings` change it
        confirm   launch despite warnings; without it they raise Refused (409)
        key       idempotency key: one launch per key within a day
        """
        body: dict[str, Any] = {
            "name": name,
            "start": start,
            "is_scaled": is_scaled,
            "model": model,
            "dataset_version_id": self._version_id("dataset", dataset),
            "recipe_version_id": self._version_id("recipe", recipe),
            "settings": dict(settings or {}),
            "toml": toml,
            "confirm": confirm,
        }
        if held_out is not None:
            body["evaluation_sets"] = [
                {"name": name, "dataset_version_id": self._version_id("dataset", of)}
                for name, of in held_out.items()
            ]
        try:
            tree = self._client.post("/launches", body, key=key)
        except Refused as error:
            words = {
                f"Send {kind}_version_id.": f"Pass {kind}=NAME."
                for kind in ("recipe", "dataset")
            }
            raise error.reworded(words) from None
        return read(RunDetail, tree, client=self._client)

    def _version_id(
        self, kind: str, reference: str | int | DatasetVersion | None
    ) -> int | None:
        if reference is None or isinstance(reference, int):
            return reference
        if isinstance(reference, DatasetVersion):
            return reference.id
        if reference.strip().isdecimal():
            return int(reference)
        return int(self._client.find_version(kind, reference)["id"])
