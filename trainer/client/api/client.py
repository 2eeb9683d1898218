"""Cohort, asked by a program."""

from __future__ import annotations

from functools import cached_property

from trainer.client.api.asking import Asker
from trainer.client.api.datasets import Datasets
from trainer.client.api.patience import Patience
from trainer.client.api.recipes import Recipes
from trainer.client.api.records import Me, Person, Team, read
from trainer.client.api.runs import Runs
from trainer.client.login import find_server


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
