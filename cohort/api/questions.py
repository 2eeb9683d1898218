"""`client.questions`: a judge labels a sample of a run's completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from cohort.api.connection import Connection
from cohort.api.frames import Records
from cohort.api.records import CompletionLabel, LabelShare, Share, read
from cohort.api.run import Run

POLL_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, repr=False)
class Question:
    """A snapshot of a question; `refresh()` reads it again."""

    COLUMNS: ClassVar = ("id", "run_id", "text", "judge", "state", "num_found")
    client: Connection = field(compare=False)
    id: int
    run_id: int
    text: str
    label_names: list[str]
    query: str
    judge: str  # its name
    state: str  # of its last job: queued, running, done, failed or cancelled
    error: str
    num_found: int | None
    created_at: datetime
    finished_at: datetime | None
    # What follows is not read for lists.
    num_sampled: int = 0
    num_asked: int = 0
    num_labelled: int = 0
    num_by_hand: int = 0
    num_not_drawn: int = 0  # labels of people that do not count
    num_tokens: int = 0
    cost: float | None = None
    currency: str = ""  # empty: no price, or one without a currency
    expected_tokens: int | None = None
    expected_cost: float | None = None
    shares: Sequence[LabelShare] = ()
    kappa: Share | None = None
    sensitivity: Share | None = None
    specificity: Share | None = None

    def __repr__(self) -> str:
        asked = f"{self.num_asked:,} of {self.num_sampled:,} asked"
        return f"<Question {self.id} {self.text[:60]!r}: {self.state}, {asked}>"

    def refresh(self) -> Question:
        return Questions(self.client).get(self.id)

    def wait(self, *, every_seconds: float = POLL_SECONDS) -> Question:
        """Wait until the judge is no longer asked."""
        question = self.refresh()
        while question.state in ("queued", "running"):
            time.sleep(every_seconds)
            question = question.refresh()
        return question

    def start(self) -> None:
        """Ask about the whole sample, or the rest of it."""
        self.client.post(f"/questions/{self.id}/start")

    def stop(self) -> None:
        self.client.act(f"/questions/{self.id}/stop")

    def labels(
        self, *, drawn: int = 0, limit: int | None = None
    ) -> Iterator[CompletionLabel]:
        """Yield the sample with the judge's labels; `drawn`: only those that are left
        for you, if people label so many.
        """
        path = f"/questions/{self.id}/labels"
        trees = self.client.iterate(path, limit=limit, drawn=drawn)
        return (read(CompletionLabel, tree) for tree in trees)

    def label_by_hand(self, labels: Mapping[int, str]) -> None:
        """Store labels of people, by the id of the completion's label; all or none.

        "": it cannot be decided. They count if they are of the draw: send all of
        `labels(drawn=20)`, then as many more as you like. People must not see the
        judge's label.
        """
        trees = [{"id": id, "label": label} for id, label in labels.items()]
        self.client.post(f"/questions/{self.id}/hand-labels", {"labels": trees})


class Questions:
    def __init__(self, client: Connection) -> None:
        self._client = client

    def ask(
        self,
        run: Run | int,
        text: str,
        *,
        judge: str = "",
        labels: Mapping[str, str] | None = None,
        query: str = "",
        sample: int = 300,
        seed: int = 0,
        shows_prompt: bool = True,
        key: str = "",
    ) -> Question:
        """Draw a sample, and ask the judge about five of it; `start` asks about all.

        judge   name; default: the team's only judge
        labels  2 to 12 names, each with its meaning or ""; None: yes and no. The first
                is asked for
        query   filter, as in the URL of Samples, Search: "min_reward=1&first_step=100"
        sample  completions to draw
        key     idempotency key: one question per key within a day
        """
        body: dict[str, Any] = {
            "run_id": run if isinstance(run, int) else run.id,
            "text": text,
            "judge": judge,
            "labels": [
                {"name": name, "meaning": meaning}
                for name, meaning in (labels or {}).items()
            ],
            "query": query,
            "sample_size": sample,
            "seed": seed,
            "shows_prompt": shows_prompt,
        }
        tree = self._client.post("/questions", body, key=key)
        return self.get(tree["id"])

    def get(self, question_id: int) -> Question:
        return self._read(self._client.get(f"/questions/{int(question_id)}"))

    def list(self, *, limit: int | None = 50) -> list[Question]:
        """List the team's questions, newest first."""
        trees = self._client.iterate("/questions", limit=limit)
        return Records(self._read(tree) for tree in trees)

    def _read(self, tree: Mapping[str, Any]) -> Question:
        return read(Question, tree, client=self._client, label_names=tree["labels"])
