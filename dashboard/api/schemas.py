"""What operations take and give, as far as several share it."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

from ninja import Path, Query, Schema
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from dashboard.analysis.reports.document import finite
from dashboard.datasets.parsing.records import broken_text
from dashboard.jobs.models import JobTarget
from dashboard.jobs.queue import waiting_reason
from dashboard.project.edits import Edit

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


class Change(Input):
    """What is left out stays."""

    was: dict[str, Any] = Field(
        default={},
        description="What fields held when you read them. Where somebody changed the "
        "same one since, nothing is changed: 409 tells both values. Without it, yours "
        "goes over theirs.",
        examples=[{}],
    )

    @model_validator(mode="after")
    def refuse_unknown_names(self) -> Self:
        known = type(self).model_fields.keys() - {"was"}
        if unknown := [name for name in self.was if name not in known]:
            raise ValueError(
                f"was.{unknown[0][:60]}: no such field; it takes "
                f"{', '.join(sorted(known))}"
            )
        return self

    def over(self, now: Schema) -> dict[str, Any]:
        """The fields that were sent, each with what it is to hold.

        `now`: of a row that is locked. EditConflict where somebody changed the same.
        """
        sent = self.model_dump(mode="json", exclude_unset=True, exclude={"was"})
        held = now.model_dump(mode="json")
        compared = {name: value for name, value in sent.items() if name in held}
        changes = Edit(given=compared, was=self.was).merge(held)
        return sent | {name: held[name] for name in compared} | changes


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


S = TypeVar("S", bound=Schema)


def fill(schema: type[S], source: object, **fields: Any) -> S:
    """Of `fields`; the schema's others are the source's own of the same names."""
    names = schema.model_fields.keys() - fields
    return schema(**{name: getattr(source, name) for name in names}, **fields)


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


class JobOut(Schema):
    """How far a job is, whatever it does."""

    state: str = Field(
        description="queued, running, done, failed or cancelled", examples=["done"]
    )
    is_stopping: bool = Field(description="It runs, and is to be cancelled.")
    done: int = Field(description="Of `total`, in `unit`.", examples=[128])
    total: int = Field(description="0: unknown.", examples=[512])
    unit: str = Field(examples=["rows"])
    message: str = Field(description="What it is at, or what delays it.")
    waiting: str = Field(
        description="Why no worker has it yet; empty in lists.", examples=[""]
    )
    error: str = Field(description="Why it failed.", examples=[""])


def job_fields(
    target: JobTarget, *, state: str = "", tells_why: bool = False
) -> dict[str, Any]:
    """The fields of JobOut; `state` of a target that has no job yet.

    `tells_why`: why it waits, which a list does not tell: three queries each.
    """
    job = target.job
    if job is None:
        names = JobOut.model_fields
        empty = {"done": 0, "total": 0, "is_stopping": False, "state": state}
        return {name: empty.get(name, "") for name in names}
    return {
        "state": job.state,
        "is_stopping": job.is_stopping,
        "done": job.done,
        "total": job.total,
        "unit": job.unit,
        "message": job.message,
        "waiting": waiting_reason(job) if tells_why else "",
        "error": job.error,
    }
