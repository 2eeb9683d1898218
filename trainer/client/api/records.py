"""What the API answers with, requests that are repeated, and lists in pages."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from trainer.client.http import Server, Unreachable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
Item = TypeVar("Item")


def read(kind: type[T], tree: Mapping[str, Any], **parts: Any) -> T:
    """Its fields; what a newer server tells besides is passed over.

    >>> read(Person, {"username": "alice", "name": "Alice", "shoe_size": 38})
    Person(username='alice', name='Alice')
    """
    values = {}
    for one in fields(kind):
        if one.name in parts:
            values[one.name] = parts[one.name]
        elif one.name in tree:
            values[one.name] = _value(one.name, tree[one.name])
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(
                f"The server sent a {kind.__name__} without {one.name!r}. Is it "
                "Cohort, and as new as this client?"
            )
    return kind(**values)


def _value(name: str, value: Any) -> Any:
    is_time = name == "time" or name.endswith("_at")
    return datetime.fromisoformat(value) if is_time and value else value


class Listing(list[Item]):
    """A list, and of how many in all; None: nobody counted."""

    def __init__(self, items: Sequence[Item], total: int | None) -> None:
        super().__init__(items)
        self.total = total


@dataclass(frozen=True, slots=True)
class Person:
    username: str
    name: str


@dataclass(frozen=True, slots=True)
class Team:
    slug: str
    name: str


@dataclass(frozen=True, slots=True)
class Me:
    """Who the token is, and what it may do now."""

    person: Person
    team: Team
    role: str
    scopes: list[str]
    token: str  # its name and last letters
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class VersionRef:
    """A version of a dataset or of a reward recipe."""

    id: int  # of the version
    of: int  # the dataset or recipe
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Dataset:
    id: int
    name: str
    description: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    id: int
    dataset_id: int
    dataset: str
    number: int
    num_rows: int
    num_left_out: int
    content_sha256: str
    mapping: dict[str, Any]
    origin: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Import:
    """A file on its way to a version: queued, running, done, failed or cancelled."""

    id: int
    state: str
    filename: str
    done: int  # of total, in unit
    total: int
    unit: str
    version: DatasetVersion | None
    error: str
    refusals: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    id: int
    name: str
    description: str
    created_by: Person | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class RecipeVersion:
    id: int
    recipe_id: int
    recipe: str
    number: int
    content_sha256: str
    spec: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Preset:
    key: str
    title: str


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at a step: its metrics and held-out scores, by name."""

    step: int
    time: datetime
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Every point of a run, none thinned out.

    >>> list(Metrics(names=["loss"], points=[]).series("loss"))
    [[], []]
    """

    names: list[str]
    points: list[Point] = field(repr=False)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric, where it has a value."""
        if name not in self.names:
            raise KeyError(
                f"There is no metric {name!r}. There are: {', '.join(self.names)}."
            )
        found = [(p.step, p.values[name]) for p in self.points if name in p.values]
        return [step for step, _ in found], [value for _, value in found]

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, slots=True)
class SampledCompletion:
    position: int
    text: str
    num_tokens: int | None
    end_reason: str
    reward: float | None
    rule_scores: dict[str, float | None]
    advantage: float | None
    mean_logprob: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The completions of one prompt at one step, together."""

    step: int
    prompt_index: int
    prompt: str
    snippet: str = ""  # what the prompt asks, cut; an older server tells none
    answer: str | None
    reward_mean: float | None
    reward_std: float | None
    signal: str
    is_trained: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupDetail(Group):
    completions: list[SampledCompletion]


Answer = TypeVar("Answer")
logger = logging.getLogger("cohort")
FIRST_WAIT, LONGEST_WAIT = 0.5, 120.0  # a server that asks for more is given up


@dataclass(frozen=True, slots=True)
class Patience:
    """Waits as long as the server asks, else twice as long each time."""

    retries: int = 4

    def ask(self, do: Callable[[], Answer]) -> Answer:
        """`do` may be done twice, so a POST names an Idempotency-Key."""
        for attempt in range(self.retries):
            try:
                return do()
            except Unreachable as error:
                wait = seconds_to_wait(error, attempt)
                if wait > LONGEST_WAIT:
                    raise
                logger.warning("%s Trying again in %.3g s.", ended(str(error)), wait)
                time.sleep(wait)
        return do()


def seconds_to_wait(error: Unreachable, attempt: int) -> float:
    if error.after_seconds is not None:
        return error.after_seconds
    return FIRST_WAIT * 2.0**attempt * random.uniform(0.75, 1.25)


def ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", ")", "!", "?")) else f"{sentence}."


PAGE = 200  # the most that the server gives at once


class Asker:
    """Raises Unreachable, after several tries, and Refused."""

    def __init__(self, server: Server, patience: Patience) -> None:
        self.server = server
        self.patience = patience

    def get(self, path: str, **query: str | int | None) -> Any:
        asked = f"{path}{query_of(**query)}"
        return self.patience.ask(lambda: self.server.get(asked))

    def post(self, path: str, tree: Any = None, *, key: str = "") -> Any:
        """Done once, however often it is sent."""
        key = key or str(uuid.uuid4())
        return self.patience.ask(lambda: self.server.post(path, tree, key=key))

    def listing(
        self,
        path: str,
        read: Callable[[Any], Answer],
        *,
        limit: int | None,
        **query: str | int | None,
    ) -> Listing[Answer]:
        """The first `limit`; None: all."""
        found: list[Answer] = []
        total, cursor = None, ""
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self.get(path, cursor=cursor, limit=size, **query)
            found += map(read, page["items"])
            total = page.get("total") if total is None else total
            cursor = page["next_cursor"]
            if not cursor:
                total = len(found) if total is None else total
                break
        return Listing(found, total)


def query_of(**query: str | int | None) -> str:
    """Without what is None or empty.

    >>> query_of(step=0, cursor="", limit=None)
    '?step=0'
    """
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""
