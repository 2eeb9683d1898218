"""A row as a model sees it, rendered by the engine in a process that is kept warm."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.tokens.choices import refuse_model
from dashboard.datasets.tokens.warm_tokenizers import Answer, Busy, tokenizers
from dashboard.project.slots import release_connection
from trainer.config import DataConfig

# Of DataConfig: what a prompt is made of besides its row.
SETTINGS = ("system_prompt", "prompt_template", "completion_prefix", "chat_template")
NUM_ROWS = 5
WAITED_SECONDS = 1.0  # how long a view waits before it says that it is under way
MAX_ROW_CHARS = 200_000
MAX_SETTING_CHARS = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """What consecutive tokens decode to; a special token stands alone."""

    text: str
    is_special: bool = False
    num_left_out: int = 0  # tokens in place of which this stands


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """Pieces, or why there are none."""

    row: int = 0
    num_rows: int = 0
    problem: str = ""
    is_under_way: bool = False
    waits_for: str = ""  # what keeps it from being begun
    pieces: tuple[Piece, ...] = ()
    num_tokens: int = 0
    num_unknown: int = 0
    limit: int = 0
    prefix: str = ""

    @property
    def row_numbers(self) -> range:
        return range(self.num_rows)

    @property
    def is_too_long(self) -> bool:
        return self.num_tokens > self.limit


def read_row(form: Mapping[str, Any]) -> int:
    text = form.get("row", "")
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def preview_version(
    team: Team, version: DatasetVersion, *, model: str, row: int, data: dict[str, Any]
) -> Preview:
    """One of the version's first rows; it waits a second at most.

    `data` are settings of DataConfig.
    """
    num_rows = min(NUM_ROWS, version.num_rows)
    row = max(0, min(row, num_rows - 1))
    stored = version.rows.filter(position=row).first()
    if stored is None:
        return Preview(problem="The dataset has no such row.")
    return preview_row(
        team, stored.as_row(), model=model, row=row, num_rows=num_rows, data=data
    )


def preview_row(
    team: Team, of: Row, *, model: str, row: int, num_rows: int, data: dict[str, Any]
) -> Preview:
    at: dict[str, Any] = {"row": row, "num_rows": num_rows}
    refusal = refuse_model(team, model) or _refuse_size(of, data)
    if refusal := refusal or _refuse_settings(data):
        return Preview(problem=refusal, **at)
    question = {
        "index": row,
        "row": {"prompt": of.prompt, "answer": of.answer, "columns": of.columns},
        "data": data,
    }
    try:
        future = tokenizers.ask(team_id=team.pk, model=model, question=question)
        release_connection()
        answer = future.result(timeout=WAITED_SECONDS)
    except NotYet:
        return Preview(is_under_way=True, **at)
    except Busy as busy:
        return Preview(is_under_way=True, waits_for=str(busy), **at)
    if problem := answer.get("problem"):
        return Preview(problem=problem, **at)
    return Preview(
        pieces=_pieces(answer),
        num_tokens=answer["num_tokens"],
        num_unknown=answer["num_unknown"],
        # Settings that were refused have no answer.
        limit=int(data["max_prompt_tokens"]),
        prefix=data["completion_prefix"],
        **at,
    )


def _pieces(answer: Answer) -> tuple[Piece, ...]:
    first = [Piece(text=text, is_special=yes) for text, yes in answer["pieces"]]
    last = [Piece(text=text, is_special=yes) for text, yes in answer["last_pieces"]]
    left_out = answer["num_left_out"]
    gap = [Piece(text="", num_left_out=left_out)] if left_out else []
    return (*first, *gap, *last)


def _refuse_size(row: Row, data: dict[str, Any]) -> str:
    num_chars = len(row.canonical())
    if num_chars > MAX_ROW_CHARS:
        return (
            f"This row has {num_chars:,} characters; {MAX_ROW_CHARS:,} can be shown "
            "here. Choose another row."
        )
    for name in SETTINGS:
        length = len(data[name] or "")
        if length > MAX_SETTING_CHARS:
            return (
                f"data.{name} has {length:,} characters; {MAX_SETTING_CHARS:,} can be "
                "shown here. Shorten it."
            )
    return ""


def _refuse_settings(data: dict[str, Any]) -> str:
    try:
        DataConfig.model_validate({**data, "rows": "-"})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        return f"data.{name}: {first['msg']}; got {str(first['input'])[:80]!r}."
    return ""
