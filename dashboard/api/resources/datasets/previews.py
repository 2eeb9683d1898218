"""What would come of a file's columns, and what a model sees of a row."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import WRITE, access_of
from dashboard.api.filters import refuse_errors
from dashboard.api.problems import refuse_field
from dashboard.api.resources.datasets.mapping import MappingIn, map_columns
from dashboard.api.resources.datasets.schemas import find_version
from dashboard.api.resources.datasets.uploads import peek_or_refuse
from dashboard.api.schemas import Id, Input
from dashboard.datasets.forms.prompt import PromptForm
from dashboard.datasets.imports.uploads import map_records
from dashboard.datasets.parsing.refusals import Refusal
from dashboard.datasets.queries import get_upload
from dashboard.datasets.row import Row
from dashboard.datasets.tokens.preview import (
    MAX_SETTING_CHARS,
    NUM_ROWS,
    SETTINGS,
    Preview,
    preview_row,
    preview_version,
)

router = Router(tags=["Datasets"], auth=WRITE)
Setting = Annotated[str, Field(max_length=MAX_SETTING_CHARS)]


class MappedRow(Schema):
    line: int = Field(examples=[1])
    record: dict[str, Any] = Field(examples=[{"question": "1+1=", "answer": "2"}])
    prompt: str | list[dict[str, Any]] | None = Field(examples=["1+1="])
    answer: str | None = Field(examples=["2"])
    columns: dict[str, Any]
    problem: str = Field(description="Why it would be refused.", examples=[""])


class MappingPreview(Schema):
    columns: list[str] = Field(examples=[["question", "answer"]])
    mapping: dict[str, Any] = Field(
        description="As sent; what was left out is guessed.",
        examples=[{"prompt": "question", "answer": "answer", "columns": []}],
    )
    rows: list[MappedRow]
    num_refused: int = Field(description="Of the first 1,000 rows.", examples=[0])
    refusals: list[str]


@router.post(
    "/dataset-uploads/{upload_id}/preview",
    response=MappingPreview,
    summary="Preview an import",
)
def preview_dataset_upload(
    request: HttpRequest, upload_id: Id, payload: MappingIn
) -> MappingPreview:
    """Its columns, and its first rows as they would be imported; stores nothing."""
    upload = get_upload(access_of(request).team, upload_id)
    seen = peek_or_refuse(upload)
    mapping = map_columns(upload, seen, payload, place="body").mapping
    records = seen.records[:NUM_ROWS]
    mapped = map_records(upload, records, mapping)
    return MappingPreview(
        columns=seen.names,
        mapping=mapping.as_json(),
        rows=[
            _mapped(each.line, each.values, of)
            for each, of in zip(records, mapped, strict=True)
        ],
        num_refused=seen.refusals.count,
        refusals=[str(refusal) for refusal in seen.refusals.shown],
    )


def _mapped(line: int, record: dict[str, Any], of: Row | Refusal) -> MappedRow:
    if isinstance(of, Refusal):
        return MappedRow(
            line=line,
            record=record,
            prompt=None,
            answer=None,
            columns={},
            problem=str(of),
        )
    prompt: Any = of.prompt
    return MappedRow(
        line=line,
        record=record,
        prompt=prompt,
        answer=of.answer,
        columns=of.columns,
        problem="",
    )


class PromptIn(Input):
    model: str = Field(
        min_length=1,
        max_length=500,
        description="Whose tokenizer renders it: a folder on the server, or a hub id.",
        examples=["Qwen/Qwen3-0.6B"],
    )
    row: Annotated[int, Field(ge=0, lt=NUM_ROWS)] = Field(
        default=0, description=f"One of the first {NUM_ROWS}."
    )
    chat_template: Setting = Field(default="auto", description="auto or none")
    system_prompt: Setting = ""
    prompt_template: Setting = ""
    completion_prefix: Setting = ""


class PieceOut(Schema):
    text: str = Field(examples=["What is 1 + 1?"])
    is_special: bool
    num_left_out: int = Field(description="Tokens in place of which this stands.")


class PromptOut(Schema):
    row: int
    is_under_way: bool = Field(
        description="The tokenizer is being loaded: ask again in a second."
    )
    pieces: list[PieceOut]
    num_tokens: int = Field(examples=[24])
    num_unknown: int = Field(description="Of them, unknown to the tokenizer.")
    limit: int = Field(examples=[512])


def _render(preview: Preview) -> PromptOut:
    if preview.problem:
        raise refuse_field("body", preview.problem)
    return PromptOut(
        row=preview.row,
        is_under_way=preview.is_under_way,
        pieces=[
            PieceOut(
                text=piece.text,
                is_special=piece.is_special,
                num_left_out=piece.num_left_out,
            )
            for piece in preview.pieces
        ],
        num_tokens=preview.num_tokens,
        num_unknown=preview.num_unknown,
        limit=preview.limit,
    )


def _settings(payload: PromptIn) -> PromptForm:
    data = {f"data.{name}": getattr(payload, name) for name in SETTINGS}
    form = PromptForm(data | {"model": payload.model})
    refuse_errors(form, place="body")
    return form


@router.post(
    "/dataset-versions/{version_id}/prompt",
    response=PromptOut,
    summary="Render a row as a model sees it",
)
def render_dataset_prompt(
    request: HttpRequest, version_id: Id, payload: PromptIn
) -> PromptOut:
    """By the engine itself, with a model's own tokenizer; stores nothing."""
    team = access_of(request).team
    version = find_version(team, version_id)
    form = _settings(payload)
    model = form.cleaned_data["model"]
    return _render(
        preview_version(team, version, model=model, row=payload.row, data=form.settings)
    )


class MappedPromptIn(PromptIn):
    mapping: MappingIn = MappingIn()


@router.post(
    "/dataset-uploads/{upload_id}/prompt",
    response=PromptOut,
    summary="Render a row of a file as a model sees it",
)
def render_upload_prompt(
    request: HttpRequest, upload_id: Id, payload: MappedPromptIn
) -> PromptOut:
    """As the chosen columns would make it, before anything is imported."""
    team = access_of(request).team
    upload = get_upload(team, upload_id)
    seen = peek_or_refuse(upload)
    columns = map_columns(upload, seen, payload.mapping, place="body.mapping")
    form = _settings(payload)
    records = seen.records[:NUM_ROWS]
    row = min(payload.row, len(records) - 1)
    (of,) = map_records(upload, [records[row]], columns.mapping)
    if isinstance(of, Refusal):
        raise refuse_field("body.row", str(of))
    model, data = form.cleaned_data["model"], form.settings
    return _render(
        preview_row(team, of, model=model, row=row, num_rows=len(records), data=data)
    )
