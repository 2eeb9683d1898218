"""`client.runs`: found and launched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from trainer.client.api.records import (
    DatasetVersion,
    Listing,
    Person,
    Preset,
    RecipeVersion,
    VersionRef,
    read,
)
from trainer.client.api.run import Run, RunDetail
from trainer.client.http import Refused

if TYPE_CHECKING:
    from trainer.client.api.client import Client

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
        tree = self._client.asker.post("/launches", body, key=key)
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
        raise ValueError(f"A run starts from one thing; got {', '.join(given)}.")
    return given[0] if given else ""
