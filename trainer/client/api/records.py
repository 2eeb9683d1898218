"""What the API answers with, as values. Fields are those of the page Operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

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
                f"The server told of a {kind.__name__} without {one.name!r}. Is it "
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
    """A file on its way to a version: queued, running, done, refused, failed …"""

    id: int
    state: str
    filename: str
    num_read: int  # bytes
    num_to_read: int
    version: DatasetVersion | None
    problem: str
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
    answer: str | None
    reward_mean: float | None
    reward_std: float | None
    signal: str
    is_trained: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupDetail(Group):
    completions: list[SampledCompletion]
