"""What operations take and give, as far as several share it."""

from __future__ import annotations

from typing import Annotated, Any, Self

from ninja import Path, Query, Schema
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from dashboard.datasets.parsing.values import broken_text
from dashboard.reports.document import finite

LARGEST_STEP = 2**31 - 1
LARGEST_ID = 2**63 - 1
MAX_DEPTH = 64  # of a body: what keeps it, or shows it, goes down as deep
Id = Annotated[int, Path(ge=1, le=LARGEST_ID)]
Step = Annotated[int, Path(ge=0, le=LARGEST_STEP)]
StepBound = Annotated[int | None, Query(None, ge=0, le=LARGEST_STEP)]
IdIn = Annotated[int, Field(ge=1, le=LARGEST_ID)]
StepIn = Annotated[int, Field(ge=0, le=LARGEST_STEP)]
# JSON knows no infinity and no NaN.
Real = Annotated[float | None, BeforeValidator(finite)]


class Input(Schema):
    """A body: unknown fields are errors, and so are characters that no text has.

    And so is a depth at which Python gives up.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def refuse_odd_characters(cls, tree: Any) -> Any:
        _check(tree if isinstance(tree, dict) else {})
        return tree


def _check(value: Any, place: tuple[str, ...] = ()) -> None:
    if len(place) >= MAX_DEPTH:
        raise ValueError(
            f"{_named(place)}: it is nested more than {MAX_DEPTH} deep; flatten it"
        )
    match value:
        case str():
            if broken := broken_text(value):
                raise ValueError(
                    f"{_named(place)}: a text holds {broken}, {_excerpt(value)}; "
                    "remove it"
                )
        case dict():
            for name, each in value.items():
                _check(name, place)
                _check(each, (*place, name))
        case list():
            for number, each in enumerate(value):
                _check(each, (*place, str(number)))


def _named(place: tuple[str, ...]) -> str:
    return ".".join(place[:4]) or "a field's name"


def _excerpt(text: str) -> str:
    return ascii(text if len(text) <= 40 else f"{text[:39]}…")


class Person(Schema):
    username: str = Field(examples=["alice"])
    name: str = Field(examples=["Alice"])

    @classmethod
    def of(cls, user: Any) -> Self | None:
        return cls(username=user.username, name=str(user)) if user else None


class Done(Schema):
    """Whether what was asked for was done, or why not."""

    done: bool
    detail: str = Field(
        default="", description="Why not, where it was not.", examples=[""]
    )


PROBLEMS = (400, 401, 403, 404, 409, 422, 429)
