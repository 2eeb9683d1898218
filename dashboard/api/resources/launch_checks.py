"""What a launch would amount to, before it is one."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import WRITE, access_of
from dashboard.api.resources.launches import LaunchIn, checked_launch, read_launch
from dashboard.api.schemas import fill
from dashboard.runs.launch.estimates import Memory
from dashboard.runs.launch.summary import summarize
from dashboard.runs.launch.toml import write_form

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
        amounts=[fill(LaunchAmountOut, one) for one in summary.amounts],
        memory=_memory(summary.memory),
        warnings=list(summary.warnings),
        hints=summary.hints,
        fitted=form.fit.texts,
        fitted_because=list(form.fit.sentences),
        config=asked.config.model_dump(mode="json"),
        toml=write_form(form),
    )
