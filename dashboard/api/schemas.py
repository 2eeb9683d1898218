"""Schemas, forms, files and cursors that several operations share."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Generic, Self, TypeVar

from django.db.models import QuerySet
from django.forms import BaseForm
from django.http import HttpRequest, QueryDict
from ninja import Path, Query, Schema
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from cohort.lines import plain
from dashboard.api.problems import (
    Problem,
    WrongField,
    refuse_field,
)
from dashboard.completions.models import Comment
from dashboard.datasets.limits import PART_BYTES
from dashboard.datasets.parsing.records import broken_text
from dashboard.datasets.uploads import OffsetMismatch
from dashboard.jobs.models import JobTarget
from dashboard.jobs.queue import waiting_reason
from dashboard.project.database import read_whole
from dashboard.web.edits import find_changes

S = TypeVar("S", bound=Schema)
Item = TypeVar("Item")
LARGEST_STEP = 2**31 - 1
LARGEST_ID = 2**63 - 1
MAX_DEPTH = 64  # of a body: what keeps it, or shows it, goes down as deep
Id = Annotated[int, Path(ge=1, le=LARGEST_ID)]
Step = Annotated[int, Path(ge=0, le=LARGEST_STEP)]
StepBound = Annotated[int | None, Query(None, ge=0, le=LARGEST_STEP)]
IdIn = Annotated[int, Field(ge=1, le=LARGEST_ID)]
StepIn = Annotated[int, Field(ge=0, le=LARGEST_STEP)]
# JSON knows no infinity and no NaN.
Real = Annotated[float | None, BeforeValidator(plain)]
Cursor = Annotated[
    str,
    Query(
        "",
        max_length=200,
        description="`next_cursor` of the previous page. Default: the first page.",
    ),
]
Limit = Annotated[int, Query(50, ge=1, le=200)]
# What an operation that answers with a file declares.
FILE: Any = {200: bytes}
# What an operation that receives a part of a file declares.
PART = {
    "requestBody": {
        "description": f"Bytes of the file, 1 to {PART_BYTES:,}.",
        "required": True,
        "content": {
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary"}
            }
        },
    }
}
Offset = Annotated[
    int,
    Query(
        ...,
        ge=0,
        le=2**60,
        description="Offset of this part in the file: `num_received` of the upload.",
        examples=[8_388_608],
    ),
]


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
    """Omitted fields stay."""

    was: dict[str, Any] = Field(
        default={},
        description="Field values when you read them. If one has changed since, the "
        "response is 409 with both values. Without it, your values "
        "overwrite them.",
        examples=[{}],
    )

    @model_validator(mode="after")
    def refuse_unknown_names(self) -> Self:
        names = type(self).model_fields.keys() - {"was"}
        if unknown := [name for name in self.was if name not in names]:
            raise ValueError(
                f"was.{unknown[0][:60]}: unknown field; known fields: "
                f"{', '.join(sorted(names))}"
            )
        return self

    def over(self, now: Schema) -> dict[str, Any]:
        """Return the sent fields with their new values.

        `now`: of a locked row. EditConflict if someone changed a field since `was`.
        """
        sent = self.model_dump(mode="json", exclude_unset=True, exclude={"was"})
        stored = now.model_dump(mode="json")
        compared = {name: value for name, value in sent.items() if name in stored}
        changes = find_changes(stored, compared, self.was)
        return sent | {name: stored[name] for name in compared} | changes


def _check(value: Any, place: tuple[str, ...] = ()) -> None:
    if len(place) >= MAX_DEPTH:
        raise ValueError(
            f"{_named(place)}: nested more than {MAX_DEPTH} levels deep; flatten it"
        )
    match value:
        case str():
            if broken := broken_text(value):
                raise ValueError(
                    f"{_named(place)}: the text contains {broken}, "
                    f"{_excerpt(value)}; remove it"
                )
        case dict():
            for name, item in value.items():
                _check(name, place)
                _check(item, (*place, name))
        case list():
            for number, item in enumerate(value):
                _check(item, (*place, str(number)))


def _named(place: tuple[str, ...]) -> str:
    return ".".join(place[:4]) or "a field name"


def _excerpt(text: str) -> str:
    return ascii(text if len(text) <= 40 else f"{text[:39]}…")


def fill(schema: type[S], source: object, **fields: Any) -> S:
    """Fill a schema with `fields`; its others are the source's attributes."""
    names = schema.model_fields.keys() - fields
    return schema(**{name: getattr(source, name) for name in names}, **fields)


class Person(Schema):
    username: str = Field(examples=["alice"])
    name: str = Field(examples=["Alice"])

    @classmethod
    def of(cls, user: Any) -> Self | None:
        return cls(username=user.username, name=str(user)) if user else None


class CommentOut(Schema):
    id: int
    by: str | None = Field(examples=["alice"])
    text: str = Field(examples=["Guesses the format, not the sum."])
    created_at: datetime

    @classmethod
    def of(cls, comment: Comment) -> Self:
        return fill(cls, comment, by=comment.user.username if comment.user else None)


class Done(Schema):
    """A result: done, or why not."""

    done: bool
    detail: str = Field(default="", description="If not done: why.", examples=[""])

    @classmethod
    def or_state(cls, is_done: bool, row: Any, refusal: str) -> Self:
        """Answer that it was done, or `refusal` and the row's current state."""
        if is_done:
            return cls(done=True)
        row.refresh_from_db()
        return cls(done=False, detail=f"{refusal} {row.state}.")


class JobOut(Schema):
    """Progress of a job of any kind."""

    state: str = Field(
        description="queued, running, done, failed or cancelled", examples=["done"]
    )
    is_stopping: bool = Field(description="The job is running and being cancelled.")
    done: int = Field(description="Progress out of `total`, in `unit`.", examples=[128])
    total: int = Field(description="0: unknown.", examples=[512])
    unit: str = Field(examples=["rows"])
    message: str = Field(description="Current phase, or the cause of a delay.")
    waiting: str = Field(
        description="Why the job is still queued. Empty in lists.", examples=[""]
    )
    error: str = Field(description="Error message of a failed job.", examples=[""])


def job_fields(
    target: JobTarget, *, state: str = "", tells_why: bool = False
) -> dict[str, Any]:
    """Return the fields of JobOut; `state` of a target without a job.

    `tells_why`: include why it waits, which costs three queries each; lists leave it
    out.
    """
    job = target.job
    if job is None:
        empty = {"done": 0, "total": 0, "is_stopping": False, "state": state}
        return {name: empty.get(name, "") for name in JobOut.model_fields}
    fields = {n: getattr(job, n) for n in JobOut.model_fields if n != "waiting"}
    return fields | {"waiting": waiting_reason(job) if tells_why else ""}


# Files that come in parts.


@contextmanager
def part_problems(num_received: Callable[[], int], offset: int) -> Iterator[None]:
    """Answer 409 if the file ends elsewhere, or the disk is full; 422 for an unfit
    part.
    """
    try:
        yield
    except OffsetMismatch:
        message = f"The file continues at byte {num_received():,}; got {offset:,}."
        raise Problem(
            409,
            message,
            code="datasets.wrong_offset",
            errors=[WrongField("query.offset", message)],
        ) from None
    except ValueError as error:
        raise refuse_field("body", error) from error
    except OSError as error:
        message = f"Failed to store the part: {error.strerror or error}. Free some"
        raise Problem(409, f"{message} space on the server, then continue.") from error


def size_of(request: HttpRequest) -> int:
    """Content-Length; 0 if it is not a number."""
    return read_whole(request.headers.get("Content-Length")) or 0


# The pages' forms, filled in by a program.


def query_of(values: Mapping[str, Any]) -> QueryDict:
    """Build a query as a browser would send it: missing values are left out."""
    query = QueryDict(mutable=True)
    for name, value in values.items():
        if isinstance(value, bool):
            if value:
                query[name] = "on"
        elif isinstance(value, list):
            query.setlist(name, [str(item) for item in value])
        elif value is not None and value != "":
            query[name] = str(value)
    return query


def refuse_errors(
    form: BaseForm, *, place: str = "query", names: Mapping[str, str] | None = None
) -> None:
    """Raise 422 with the form's invalid fields; `names`: of fields with other names in
    the API.

    Errors of the whole form are reported for `place`.
    """
    names = names or {}
    errors = [
        WrongField(
            place if name == "__all__" else f"{place}.{names.get(name, name)}",
            text,
            error.code or "",
        )
        for name, field_errors in form.errors.as_data().items()
        for error in field_errors
        for text in error.messages
    ]
    if errors:
        raise Problem(422, errors[0].message, code=errors[0].code, errors=errors)


# Pages by cursor: rows added in between neither repeat a row nor hide one.


class Page(Schema, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = Field(
        default=None,
        description="Cursor of the next page. null: this is the last page.",
    )
    total: int | None = Field(
        default=None, description="Number of items on all pages. null: not counted."
    )


def page_by(
    rows: QuerySet[Any],
    read: Callable[[Any], Any],
    *,
    cursor: str,
    limit: int,
    key: str = "-pk",
) -> Page[Any]:
    """Rows in the order of `key`, a unique number."""
    name, total = key.removeprefix("-"), rows.count()
    if cursor:
        after = "lt" if key.startswith("-") else "gt"
        rows = rows.filter(**{f"{name}__{after}": read_cursor(cursor)})
    items = list(rows.order_by(key)[: limit + 1])
    return cut(items, limit, read, lambda row: getattr(row, name), total=total)


def page_from(
    rows: QuerySet[Any], read: Callable[[Any], Any], *, cursor: str, limit: int
) -> Page[Any]:
    """Rows in another order: the cursor says how many came before."""
    start, total = read_cursor(cursor) if cursor else 0, rows.count()
    items = list(rows[start : start + limit])
    end = start + len(items)
    more = write_cursor(end) if items and end < total else None
    return Page(items=[read(row) for row in items], next_cursor=more, total=total)


def cut(
    found: Sequence[Any],
    limit: int,
    read: Callable[[Any], Any],
    key_of: Callable[[Any], int],
    *,
    total: int | None = None,
) -> Page[Any]:
    """`found` has one row more than the page if there is a next page."""
    items = found[:limit]
    more = write_cursor(key_of(items[-1])) if len(found) > limit else None
    return Page(items=[read(row) for row in items], next_cursor=more, total=total)


def write_cursor(place: int) -> str:
    return base64.urlsafe_b64encode(f"v1:{place}".encode()).decode().rstrip("=")


def read_cursor(text: str) -> int:
    try:
        padded = text.encode() + b"=" * (-len(text) % 4)
        version, _, place = base64.urlsafe_b64decode(padded).decode().partition(":")
    except (binascii.Error, UnicodeError):
        version, place = "", ""
    number = read_whole(place, digits=19)
    if version != "v1" or number is None or number > LARGEST_ID:
        raise refuse_field(
            "query.cursor",
            f"Invalid cursor {text[:60]!r}. Send `next_cursor` of a page "
            "unchanged, or none for the first page.",
        )
    return number
