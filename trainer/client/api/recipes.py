"""`client.recipes`: what rewards are made of."""

from __future__ import annotations

from typing import Any

from trainer.client.api.asking import Asker
from trainer.client.api.datasets import split_reference
from trainer.client.api.records import Listing, Person, Recipe, RecipeVersion, read


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
