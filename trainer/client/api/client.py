"""Cohort, asked by a program."""

from __future__ import annotations

import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from trainer.client.api.datasets import Datasets
from trainer.client.api.records import DatasetVersion, Me, read
from trainer.client.api.run import Run, RunDetail
from trainer.client.http import (
    Progress,
    Refused,
    Unreachable,
    Value,
    find_server,
    query_of,
)

logger = logging.getLogger("cohort")
Answer = TypeVar("Answer")
NOT_FOUND = 404
PAGE = 200  # the most that the server gives at once
FIRST_WAIT, LONGEST_WAIT = 0.5, 120.0  # a server that asks for more is given up


class Client:
    """One team, by a token of it.

        from trainer.client import Client

        client = Client()  # of `cohort login`, or of COHORT_URL and COHORT_TOKEN
        version = client.datasets.push("sums.jsonl")
        run = client.runs.launch("dr-grpo", dataset=version, recipe="right answer")
        for point in run.watch():
            print(point.step, point.values.get("reward/mean"))

    Every other operation of the API, by its path below /api/v1:

        for recipe in client.iterate("/recipes"):
            print(recipe["id"], recipe["name"])
        client.post("/sweeps", {"start": "run-7", "sweep": […]}, key="sweep-1")

    A request that gets no answer is sent again, `retries` times; what it asks for is
    done once. Raises Refused, with what the server said, Unreachable, or ValueError.
    """

    def __init__(self, url: str = "", token: str = "", *, retries: int = 4) -> None:
        self.server = find_server(url, token)
        self.retries = retries
        self.datasets = Datasets(self)
        self.runs = Runs(self)

    def __repr__(self) -> str:
        return f"<Client of {self.server.url}>"  # never the token

    @cached_property
    def me(self) -> Me:
        """Who the token is."""
        return read(Me, self.get("/me"))

    @property
    def address(self) -> str:
        """Of the team's pages."""
        return f"{self.server.url.rstrip('/')}/{self.me.team.slug}"

    def get(self, path: str, **query: Value) -> Any:
        return self.retry(lambda: self.server.get(path, **query))

    def post(self, path: str, tree: Any = None, *, key: str = "") -> Any:
        """Done once, however often it is sent; with `key` also by another process."""
        key = key or str(uuid.uuid4())
        return self.retry(lambda: self.server.send_json("POST", path, tree, key=key))

    def patch(self, path: str, tree: Any) -> Any:
        return self.retry(lambda: self.server.send_json("PATCH", path, tree))

    def iterate(
        self, path: str, *, limit: int | None = None, **query: Value
    ) -> Iterator[Any]:
        """The first `limit` items of a list, None: all, a page after the other."""
        cursor: str | None = ""
        num_left = limit
        while cursor is not None and num_left != 0:
            size = PAGE if num_left is None else min(PAGE, num_left)
            page = self.get(path, cursor=cursor, limit=size, **query)
            yield from page["items"]
            cursor = page["next_cursor"]
            if num_left is not None:
                num_left -= size

    def download(
        self,
        path: str,
        target: Path,
        *,
        overwrite: bool = False,
        on_progress: Progress | None = None,
        **query: Value,
    ) -> Path:
        """To a file that is there whole, or not at all."""
        if target.exists() and not (overwrite and target.is_file()):
            raise ValueError(
                f"{target} already exists. Name another file, or overwrite it."
            )
        draft = target.with_name(f".{target.name}.{os.getpid()}.part")
        asked = f"{path}{query_of(**query)}"

        def take() -> None:
            with draft.open("wb") as file:
                for piece in self.server.pieces(asked):
                    file.write(piece)
                    if on_progress:
                        on_progress(file.tell(), None)

        try:
            self.retry(take)  # from its start: it is made while it is sent
            draft.replace(target)
        except OSError as error:
            raise ValueError(f"{target} cannot be written: {error}.") from None
        finally:
            draft.unlink(missing_ok=True)
        return target

    def retry(
        self, do: Callable[[], Answer], *, for_seconds: float | None = None
    ) -> Answer:
        """Again after as long as the server asks, else twice as long each time;
        `retries` times, or for so many seconds.

        `do` may be done twice, so a POST names an Idempotency-Key.
        """
        end, attempt = time.monotonic() + (for_seconds or 0.0), 0
        while True:
            try:
                return do()
            except Unreachable as error:
                left = end - time.monotonic()
                is_over = attempt >= self.retries if for_seconds is None else left < 0
                wait = error.after_seconds
                if wait is None:
                    usual = min(FIRST_WAIT * 2.0**attempt, LONGEST_WAIT)
                    wait = usual * random.uniform(0.75, 1.25)
                elif wait > max(LONGEST_WAIT, left):
                    is_over = True
                if is_over:
                    raise
                logger.warning("%s; trying again in %.3g s", error, wait)
                time.sleep(wait)
                attempt += 1

    def find_version(self, kind: str, reference: str | int) -> Any:
        """Of a "dataset" or a "recipe": "sums" is the newest, "sums@2" the second."""
        name, number = split_reference(str(reference).strip())
        path = f"/{kind}s/{self.find_named(kind, name)}/versions"
        for version in self.iterate(path, limit=1 if number is None else None):
            if number in (None, version["number"]):
                return version
        has = "none" if number is None else f"no version {number}"
        raise ValueError(f"The {kind} {name!r} has {has}.")

    def find_named(self, kind: str, name: str) -> int:
        there = list(self.iterate(f"/{kind}s"))
        found = next((one["id"] for one in there if one["name"] == name), None)
        if found is None:
            names = ", ".join(repr(one["name"]) for one in there[:20]) or "none yet"
            raise ValueError(f"There is no {kind} {name!r}. There are: {names}.")
        number: int = found
        return number


class Runs:
    def __init__(self, client: Client) -> None:
        self._client = client

    def list(
        self, q: str = "", *, sort: str = "-num", limit: int | None = 50
    ) -> list[Run]:
        """Those that the run list's language finds, such as `state = running`."""
        found = self._client.iterate("/runs", limit=limit, q=q, sort=sort)
        return [read(Run, tree, client=self._client) for tree in found]

    def get(self, run_id: int) -> RunDetail:
        """With its settings and notes."""
        try:
            tree = self._client.get(f"/runs/{int(run_id)}")
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
            message = f"The team of the token has no run {run_id}. (HTTP {NOT_FOUND})"
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
        """Queue a run, checked in full. What is not named is as its start has it.

        start     the key of a published system or of a team's preset, see `/presets`;
                  "run-7"; or a run's checkpoint, "fork-7-step-000050-attempt-1"
        is_scaled the preset's settings made smaller for one machine
        dataset   a version, its id, "sums" or "sums@2" for its second version; without
                  it the start's, or the only one there is
        recipe    the same of rewards
        held_out  names of evaluation sets, and datasets as above
        model     a folder or a name on the hub; without it the start's, else a starter
        settings  changes by path: {"optim.learning_rate": 1e-6}
        toml      the engine's TOML instead; `settings` change it
        confirm   launch though there are warnings; without it they are Refused (409)
        key       launched again with the same one within a day, it is launched once
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
                {"name": one, "dataset_version_id": self._version_id("dataset", of)}
                for one, of in held_out.items()
            ]
        try:
            tree = self._client.post("/launches", body, key=key)
        except Refused as error:
            words = {
                f"Send {one}_version_id.": f"Pass {one}=NAME."
                for one in ("recipe", "dataset")
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
        number: int = self._client.find_version(kind, reference)["id"]
        return number


def split_reference(text: str) -> tuple[str, int | None]:
    """
    >>> split_reference("sums@2"), split_reference("a@b")
    (('sums', 2), ('a@b', None))
    """
    name, at, number = text.rpartition("@")
    is_number = number.isascii() and number.isdigit() and len(number) <= 10
    return (name, int(number)) if at and is_number else (text, None)
