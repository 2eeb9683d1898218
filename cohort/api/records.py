"""Records that the API returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def read(kind: type[T], tree: Mapping[str, Any], **parts: Any) -> T:
    """Return a record from JSON; unknown fields of a newer server are ignored.

    >>> read(Person, {"username": "alice", "name": "Alice", "shoe_size": 38})
    Person(username='alice', name='Alice')
    """
    values = dict(parts)
    for part in fields(kind):
        if part.name in tree and part.name not in parts:
            values[part.name] = _value(part.name, tree[part.name])
        elif part.name not in parts and part.default is MISSING:
            raise ValueError(
                f"The server sent a {kind.__name__} without {part.name!r}. Check the "
                "server URL, or update the server."
            )
    return kind(**values)


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    # A question's judge is a name, the judge's share of a label is a record.
    if (kind := PARTS.get(name)) and not isinstance(value, str):
        is_list = isinstance(value, list)
        return [read(kind, item) for item in value] if is_list else read(kind, value)
    is_time = name == "time" or name.endswith("_at")
    return datetime.fromisoformat(value) if is_time else value


@dataclass(frozen=True, slots=True)
class Person:
    username: str
    name: str

    def __str__(self) -> str:
        return self.username


@dataclass(frozen=True, slots=True)
class Team:
    slug: str
    name: str


@dataclass(frozen=True, slots=True)
class Me:
    """The token's person and team, and what it may do now."""

    person: Person
    team: Team
    role: str
    scopes: list[str]
    token: str  # its name and last characters
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class VersionRef:
    """A version of a dataset or of a reward recipe."""

    id: int  # of the version
    of: int  # the dataset or recipe
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    COLUMNS: ClassVar = ("name", "step", "score", "margin", "num_bytes", "is_there")
    name: str
    step: int
    num_bytes: int
    saved_at: datetime
    is_there: bool  # false: its files were deleted
    is_best: bool
    is_pinned: bool
    score: float | None
    margin: float | None = None  # half of the score's 95% interval


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
    created_at: datetime
    source_text: str = ""  # empty from an older server
    environment: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """Metrics and held-out scores of a step, by name."""

    step: int
    time: datetime
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the policy called, and what came back."""

    name: str
    arguments: str
    result: str
    error: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of an episode; its message is `text[start:end]` of the completion."""

    author: str  # policy, environment or tool
    name: str  # of the tool
    start: int
    end: int
    token_end: int | None
    seconds: float | None
    reward: float | None
    calls: list[Call]


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
    # Of an episode; empty for one turn of the policy, and from an older server.
    turns: Sequence[Turn] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCompletion(SampledCompletion):
    """A completion that a search found."""

    step: int
    prompt_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The completions of one prompt at one step."""

    COLUMNS: ClassVar = (
        "step",
        "prompt_index",
        "signal",
        "reward_mean",
        "reward_std",
        "answer",
        "snippet",
    )
    step: int
    prompt_index: int
    prompt: str
    snippet: str = ""  # beginning of the question; empty from an older server
    answer: str | list[str] | None
    reward_mean: float | None
    reward_std: float | None
    signal: str
    is_trained: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupDetail(Group):
    completions: list[SampledCompletion]


@dataclass(frozen=True, slots=True)
class Share:
    """A value with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LabelShare:
    """The share of completions with a label of a question."""

    label: str
    judge: Share  # as the judge sees it
    corrected: Share | None  # None: people have labelled too few


@dataclass(frozen=True, slots=True)
class CompletionLabel:
    """A sampled completion of a question, with the judge's label."""

    id: int
    step: int
    prompt_index: int
    position: int
    weight: float  # matching completions that it stands for
    label: str  # empty: none yet
    quote_from: int | None  # the quote is text[quote_from:quote_to]
    quote_to: int | None
    why: str
    kind: str
    problem: str


PARTS: dict[str, type[Any]] = {
    "shares": LabelShare,
    "judge": Share,
    "corrected": Share,
    "kappa": Share,
    "sensitivity": Share,
    "specificity": Share,
    "person": Person,
    "team": Team,
    "owner": Person,
    "dataset_version": VersionRef,
    "recipe_version": VersionRef,
    "completions": SampledCompletion,
    "turns": Turn,
    "calls": Call,
}
