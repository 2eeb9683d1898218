"""Cohort, asked by a program."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from trainer.client.api.datasets import Datasets, split_reference
from trainer.client.api.records import (
    Listing,
    Me,
    Person,
    Recipe,
    RecipeVersion,
    Team,
    read,
)
from trainer.client.api.requests import Asker, Patience
from trainer.client.api.runs import Runs
from trainer.client.login import find_server


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
            raise ValueError(f"No recipe is called {name!r}. There are: {names}.")
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
        run = client.runs.launch("dr-grpo", dataset=version.id)
        for point in run.watch():
            print(point.step, point.values["reward/mean"])

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
