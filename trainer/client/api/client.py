"""Cohort, asked by a program."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeVar

from trainer.client.api.datasets import Datasets, split_reference
from trainer.client.api.records import (
    Asker,
    DatasetVersion,
    Listing,
    Me,
    Patience,
    Person,
    Preset,
    Recipe,
    RecipeVersion,
    Team,
    VersionRef,
    read,
)
from trainer.client.api.run import Run, RunDetail
from trainer.client.http import Refused, find_server

Some = TypeVar("Some", bound=Run)
NOT_FOUND = 404
Value = str | bool | int | float | None


class Runs:
    def __init__(self, client: Client) -> None:
        self._client = client

    def list(
        self, q: str = "", *, sort: str = "-num", limit: int | None = 50
    ) -> Listing[Run]:
        """Those that the run list's language finds, such as `state = running`."""
        return self._client.asker.listing(
            "/runs", lambda tree: self._read(Run, tree), limit=limit, q=q, sort=sort
        )

    def get(self, run_id: int) -> RunDetail:
        """With its settings and notes."""
        try:
            tree = self._client.asker.get(f"/runs/{int(run_id)}")
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
            said = f"The team of the token has no run {run_id}. (HTTP {NOT_FOUND})"
            raise Refused(NOT_FOUND, said, error.problem) from None
        return self._read(RunDetail, tree)

    def presets(self) -> Listing[Preset]:
        """What a launch may begin with."""
        there = self._client.asker.get("/presets")["presets"]
        return Listing([read(Preset, one) for one in there], len(there))

    def launch(
        self,
        preset: str = "",
        *,
        name: str | None = None,
        clone_of: int | None = None,
        fork_of: str = "",
        is_scaled: bool = False,
        model: str | None = None,
        dataset: str | int | DatasetVersion | None = None,
        recipe: str | int | RecipeVersion | None = None,
        held_out: Mapping[str, str | int | DatasetVersion] | None = None,
        settings: Mapping[str, Value] | None = None,
        toml: str | None = None,
        confirm: bool = False,
        key: str = "",
    ) -> RunDetail:
        """Queue a run, checked in full. What is not named is as its start has it.

        preset    a published system or a preset of the team; see `presets()`
        clone_of  a run's number, instead of a preset
        fork_of   instead: a run and its checkpoint, "7-step-000050-epoch-1"
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
        body = {
            "name": name,
            "start": _start(preset, clone_of, fork_of),
            "is_scaled": is_scaled,
            "model": model,
            "dataset_version_id": None if dataset is None else self._version(dataset),
            "recipe_version_id": (
                None if recipe is None else self._recipe_version(recipe)
            ),
            "evaluation_sets": None if held_out is None else self._sets(held_out),
            "settings": dict(settings or {}),
            "toml": toml,
            "confirm": confirm,
        }
        try:
            tree = self._client.asker.post("/launches", body, key=key)
        except Refused as error:
            words = {
                f"Send {one}_version_id.": f"Pass {one}=NAME."
                for one in ("recipe", "dataset")
            }
            raise error.reworded(words) from None
        return self._read(RunDetail, tree)

    def _version(self, reference: str | int | DatasetVersion) -> int:
        if isinstance(reference, DatasetVersion):
            return reference.id
        return self._client.datasets.version(reference).id

    def _recipe_version(self, reference: str | int | RecipeVersion) -> int:
        if isinstance(reference, RecipeVersion):
            return reference.id
        return self._client.recipes.version_id(reference)

    def _sets(self, held_out: Mapping[str, str | int | DatasetVersion]) -> Any:
        return [
            {"name": name, "dataset_version_id": self._version(reference)}
            for name, reference in held_out.items()
        ]

    def _read(self, kind: type[Some], tree: Any) -> Some:
        parts: dict[str, Any] = {
            "owner": read(Person, tree["owner"]) if tree["owner"] else None,
            "client": self._client,
        }
        for name in ("dataset_version", "recipe_version"):
            parts[name] = read(VersionRef, tree[name]) if tree[name] else None
        return read(kind, tree, **parts)


def _start(preset: str, clone_of: int | None, fork_of: str) -> str:
    """
    >>> _start("dr-grpo", None, ""), _start("", 7, "")
    ('dr-grpo', 'run-7')
    """
    given = [preset] if preset else []
    given += [f"run-{clone_of}"] if clone_of is not None else []
    given += [f"fork-{fork_of}"] if fork_of else []
    if len(given) > 1:
        raise ValueError(f"A run has one start; got {', '.join(given)}.")
    return given[0] if given else ""


class Recipes:
    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    def list(self, *, limit: int | None = None) -> Listing[Recipe]:
        """The newest first."""
        return self._asker.listing("/recipes", _recipe, limit=limit)

    def versions(
        self, recipe: int | Recipe, *, limit: int | None = None
    ) -> Listing[RecipeVersion]:
        """The newest first. A version never changes."""
        number = recipe.id if isinstance(recipe, Recipe) else recipe
        return self._asker.listing(
            f"/recipes/{number}/versions",
            lambda tree: read(RecipeVersion, tree),
            limit=limit,
        )

    def version_id(self, reference: str | int) -> int:
        """ "right answer": the newest, "right answer@2": its second, 5: itself."""
        text = str(reference).strip()
        if text.isdecimal():
            return int(text)
        name, number = split_reference(text)
        there = self.list()
        recipe = next((one for one in there if one.name == name), None)
        if recipe is None:
            names = ", ".join(repr(one.name) for one in there[:20]) or "none yet"
            raise ValueError(f"There is no recipe {name!r}. There are: {names}.")
        for version in self.versions(recipe):
            if number in (None, version.number):
                return version.id
        raise ValueError(f"The recipe {name!r} has no version {number}.")


def _recipe(tree: Any) -> Recipe:
    by = tree["created_by"]
    return read(Recipe, tree, created_by=read(Person, by) if by else None)


class Client:
    """One team, by a token of it.

        from trainer.client import Client

        client = Client()  # of `cohort login`, or of COHORT_URL and COHORT_TOKEN
        version = client.datasets.push("sums.jsonl")
        run = client.runs.launch("dr-grpo", dataset=version, recipe="right answer")
        for point in run.watch():
            print(point.step, point.values.get("reward/mean"))

    A request that gets no answer is sent again, `retries` times; what it asks for is
    done once. Raises Refused, with what the server said, Unreachable, or ValueError.
    """

    def __init__(self, url: str = "", token: str = "", *, retries: int = 4) -> None:
        self.server = find_server(url, token)
        self.asker = Asker(self.server, Patience(retries))
        self.datasets = Datasets(self.asker)
        self.recipes = Recipes(self.asker)
        self.runs = Runs(self)

    def __repr__(self) -> str:
        return f"<Client of {self.server.url}>"  # never the token

    @cached_property
    def me(self) -> Me:
        """Who the token is."""
        tree = self.asker.get("/me")
        person, team = read(Person, tree["person"]), read(Team, tree["team"])
        return read(Me, tree, person=person, team=team)

    @property
    def address(self) -> str:
        """Of the team's pages."""
        return f"{self.server.url.rstrip('/')}/{self.me.team.slug}"
