"""What a launch would amount to, before it is one."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import WRITE, access_of
from dashboard.api.problems import refuse_field
from dashboard.api.resources.launches import LaunchIn, checked_launch, read_launch
from dashboard.datasets.tokens.preview import NUM_ROWS, SETTINGS, preview_version
from dashboard.runs.config.fields import read_tree
from dashboard.runs.launch.memory import Memory
from dashboard.runs.launch.model_choices import check_model
from dashboard.runs.launch.summary import summarize
from dashboard.runs.launch.toml_form import write_form

router = Router(tags=["Launch"], auth=WRITE)


class LaunchAmountOut(Schema):
    title: str = Field(examples=["Completions per step"])
    value: str = Field(examples=["256"])
    how: str = Field(examples=["32 prompts × 8"])


class MemoryFitOut(Schema):
    device: str = Field(examples=["NVIDIA H100 80GB HBM3"])
    percent: float = Field(description="Of its memory.", examples=[41.5])


class MemoryOut(Schema):
    """The most that the run holds at once."""

    num_bytes: int = Field(examples=[2_400_000_000])
    peak: str = Field(description="When that is.", examples=["while updating"])
    parts: dict[str, int] = Field(
        description="Bytes.", examples=[{"Weights": 540_000_000}]
    )
    fits: list[MemoryFitOut] = Field(description="Devices of workers that are known.")
    problem: str = Field(description="Why nothing is known.")


def _memory(memory: Memory) -> MemoryOut:
    return MemoryOut(
        num_bytes=memory.total,
        peak=memory.peak,
        parts={part.title: part.num_bytes for part in memory.parts},
        fits=[
            MemoryFitOut(device=fit.device.name, percent=fit.percent)
            for fit in memory.fits
        ],
        problem=memory.problem,
    )


class LaunchCheckOut(Schema):
    name: str = Field(examples=["calm-otter-7"])
    amounts: list[LaunchAmountOut]
    memory: MemoryOut
    warnings: list[str] = Field(description="A launch takes confirm: true for these.")
    hints: list[str]
    fitted: dict[str, str] = Field(
        description="Settings made to fit the dataset's rows.",
        examples=[{"data.num_eval_rows": "20"}],
    )
    fitted_because: list[str]
    config: dict[str, Any] = Field(description="As the engine would take it.")
    toml: str = Field(
        description="The same as TOML.", examples=["[optim]\nnum_steps = 200\n"]
    )


@router.post("/launches/check", response=LaunchCheckOut, summary="Check a launch")
def check_launch(request: HttpRequest, payload: LaunchIn) -> LaunchCheckOut:
    """Takes what a launch takes, refuses what it refuses, and launches nothing."""
    form = read_launch(access_of(request).team, payload)
    asked = checked_launch(form)
    summary = summarize(form)
    return LaunchCheckOut(
        name=asked.name,
        amounts=[
            LaunchAmountOut(title=one.title, value=one.value, how=one.how)
            for one in summary.amounts
        ],
        memory=_memory(summary.memory),
        warnings=list(summary.warnings),
        hints=summary.hints,
        fitted=form.fit.texts,
        fitted_because=list(form.fit.sentences),
        config=asked.config.model_dump(mode="json"),
        toml=write_form(form),
    )


class PromptPreviewIn(LaunchIn):
    row: Annotated[int, Field(ge=0, lt=NUM_ROWS)] = Field(
        default=0, description="One of the dataset's first rows."
    )


class PreviewPieceOut(Schema):
    text: str
    is_special: bool = Field(description="A token that stands for itself.")
    num_left_out: int = Field(description="Tokens in whose place this stands.")


class PromptPreviewOut(Schema):
    pieces: list[PreviewPieceOut]
    num_tokens: int = Field(examples=[61])
    num_unknown: int = Field(description="Tokens that the model does not know.")
    limit: int = Field(description="data.max_prompt_tokens.", examples=[512])
    is_under_way: bool = Field(description="Ask again: its tokenizer is being loaded.")
    waits_for: str
    problem: str = Field(description="Why there are no pieces.")


@router.post("/launches/prompt", response=PromptPreviewOut, summary="Preview a prompt")
def preview_prompt(request: HttpRequest, payload: PromptPreviewIn) -> PromptPreviewOut:
    """A row of the chosen dataset as the chosen model would see it."""
    team = access_of(request).team
    form = read_launch(team, payload)
    if form.dataset_version is None:
        raise refuse_field("body.dataset_version_id", "Choose a dataset version.")
    if problem := check_model(form.model_path):
        raise refuse_field("body.model", problem)
    data = read_tree(form.texts)["data"]
    names = (*SETTINGS, "max_prompt_tokens")
    found = preview_version(
        team,
        form.dataset_version,
        model=form.model_path,
        row=payload.row,
        data={name: data[name] for name in names},
    )
    return PromptPreviewOut(
        pieces=[
            PreviewPieceOut(
                text=one.text, is_special=one.is_special, num_left_out=one.num_left_out
            )
            for one in found.pieces
        ],
        num_tokens=found.num_tokens,
        num_unknown=found.num_unknown,
        limit=found.limit,
        is_under_way=found.is_under_way,
        waits_for=found.waits_for,
        problem=found.problem,
    )
