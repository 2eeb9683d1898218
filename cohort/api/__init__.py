"""The API of one team: `Client`, its datasets, runs and questions."""

from __future__ import annotations

from cohort.api.connection import Connection
from cohort.api.datasets import Datasets
from cohort.api.questions import Questions
from cohort.api.run import Runs


class Client(Connection):
    """The API of one team, by a token for it.

        from cohort import Client

        client = Client()  # COHORT_URL and COHORT_TOKEN, or `cohort login`
        version = client.datasets.push("sums.jsonl")
        run = client.runs.launch("dr-grpo", dataset=version, recipe="right answer")
        for point in run.watch():
            print(point.step, point.values.get("reward/mean"))

    Other operations of the API, by their path below /api/v1:

        for recipe in client.iterate("/recipes"):
            print(recipe["id"], recipe["name"])
        client.post("/sweeps", {"start": "run-7", "sweep": […]}, key="sweep-1")

    A request without a response is repeated up to `retries` times; it takes effect
    once. Raises Refused (the server's error), Unreachable, or ValueError (invalid
    argument).
    """

    def __init__(self, url: str = "", token: str = "", *, retries: int = 4) -> None:
        super().__init__(url, token, retries=retries)
        self.datasets = Datasets(self)
        self.runs = Runs(self)
        self.questions = Questions(self)
