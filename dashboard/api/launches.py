"""Launches, with the checks of the launch form; presets and models."""

from __future__ import annotations

from typing import Annotated, Any

from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.problems import (
    Problem,
    WrongField,
    or_conflict,
    or_refuse,
)
from dashboard.api.runs import RunDetail
from dashboard.api.schemas import LARGEST_STEP, IdIn, Input, fill
from dashboard.runs.config.fields import all_fields
from dashboard.runs.launch.draft import LaunchDraft, choices_of
from dashboard.runs.launch.eval_sets import MAX_SETS, read_drafts
from dashboard.runs.launch.launching import Launch, check_draft, launch_run
from dashboard.runs.launch.page import summarize, warn
from dashboard.runs.launch.starts import (
    find_start,
    offer_presets,
    offer_starters,
    offer_team_presets,
    propose_name,
)
from dashboard.runs.launch.toml import apply_toml, write_form
from dashboard.runs.queries import get_run

router = Router(tags=["Launch"], auth=READ)
Value = str | bool | int | float | None


class PresetOut(Schema):
    key: str = Field(examples=["dr-grpo"])
    title: str = Field(examples=["Dr. GRPO"])
    summary: str
    source: str = Field(description="Where the settings were published.")
    can_be_scaled: bool = Field(description="Whether `is_scaled` has an effect.")
    settings: dict[str, str] = Field(
        description="Settings that differ from Cohort's defaults, by path.",
        examples=[{"optim.learning_rate": "1e-6"}],
    )
    recipe: dict[str, Any] | None = Field(
        description="The preset's reward. Save it as a reward of the team to use it."
    )


class ModelOut(Schema):
    path: str
    title: str = Field(examples=["SmolLM2-135M-Instruct"])


class StartsOut(Schema):
    presets: list[PresetOut]
    models: list[ModelOut] = Field(description="Models in the launch form.")


@router.get("/presets", response=StartsOut, summary="List presets and models")
def presets(request: ApiRequest) -> StartsOut:
    """Presets of published systems and of the team, and starter models."""
    team = request.auth.team
    starters = choices_of(team).starters
    offered = [*offer_presets(), *offer_team_presets(team), *offer_starters(starters)]
    starts = [
        find_start(start.key, team=team, starters=starters, scaled=False)
        for start in offered
    ]
    return StartsOut(
        presets=[
            fill(
                PresetOut,
                start,
                settings={s.path: start.texts[s.path] for s, _, _ in start.differences},
            )
            for start in starts
        ],
        models=[
            ModelOut(path=str(starter.path), title=starter.title)
            for starter in starters
        ],
    )


class SetIn(Input):
    dataset_version_id: IdIn
    name: str = Field(default="", max_length=200, examples=["held_out"])
    max_rows: Annotated[int, Field(ge=1, le=LARGEST_STEP)] | None = None


class LaunchIn(Input):
    name: str | None = Field(
        default=None, max_length=400, description="Default: a generated name."
    )
    start: str = Field(
        default="",
        max_length=200,
        description="A preset's key, `run-7` (clone run 7), "
        "`fork-7-step-000050-attempt-1` (fork run 7 from that checkpoint), "
        "`recommended` (for the model, with its own dataset and reward), or empty for "
        "Cohort's defaults.",
        examples=["dr-grpo"],
    )
    is_scaled: bool = Field(
        default=False, description="Scale the preset down for a small machine."
    )
    model: str | None = Field(
        default=None,
        max_length=1_000,
        description="Model folder, or Hugging Face model ID.",
    )
    dataset_version_id: IdIn | None = Field(default=None, examples=[12])
    recipe_version_id: IdIn | None = Field(default=None, examples=[5])
    settings: dict[str, Value] = Field(
        default={},
        description="Changed settings by path. A run's `config` has all paths.",
        examples=[{"optim.learning_rate": 1e-6, "optim.num_steps": 200}],
    )
    toml: str | None = Field(
        default=None,
        max_length=200_000,
        description="The configuration as TOML. Missing settings get their defaults; "
        "`settings` override it.",
    )
    evaluation_sets: list[SetIn] | None = Field(default=None, max_length=MAX_SETS)
    confirm: bool = Field(
        default=False,
        description="Launch despite warnings. If false, warnings return 409.",
    )


@router.post("/launches", response={201: RunDetail}, auth=WRITE, summary="Launch a run")
def launch(request: ApiRequest, payload: LaunchIn) -> Status[RunDetail]:
    """Queue a run after the checks of the launch form.

    Omitted fields keep the values of `start`. A team's only dataset or recipe is the
    default.
    """
    form = read_launch(request.auth.team, payload)
    checked = checked_launch(form)
    refuse_warnings(checked, payload)
    team, user = request.auth.team, request.auth.user
    start, fork = form.start.run, form.start.fork
    with or_conflict():
        run = launch_run(checked, team=team, user=user, cloned_from=start, fork_of=fork)
    return Status(201, RunDetail.of(get_run(team, run.pk)))


def refuse_warnings(checked: Launch, payload: LaunchIn) -> None:
    """Refuse with 409 if there are warnings and `confirm` is false."""
    if not payload.confirm and (warnings := warn(checked)):
        raise Problem(
            409,
            "Not launched. " + " ".join(warnings) + " Send confirm: true to launch "
            "anyway.",
            code="runs.launch_warnings",
            errors=[WrongField("body.confirm", warning) for warning in warnings],
        )


def read_launch(team: Team, payload: LaunchIn) -> LaunchDraft:
    choices = choices_of(team)
    with or_refuse("body.start"):
        start = find_start(
            payload.start,
            team=team,
            starters=choices.starters,
            scaled=payload.is_scaled,
            model=payload.model or "",
        )
    form = LaunchDraft.from_start(start, choices, "")
    form.name = propose_name(team) if payload.name is None else payload.name.strip()
    if payload.dataset_version_id is not None:
        form.dataset = str(payload.dataset_version_id)
        form.chosen |= {"dataset"}
    if payload.recipe_version_id is not None:
        form.recipe = str(payload.recipe_version_id)
        form.chosen |= {"recipe"}
    if payload.evaluation_sets is not None:
        form.eval_sets = read_drafts(_controls(payload.evaluation_sets), choices)
    form.fill_in(start, payload.model, {})
    # A team's only one is the default of what is not sent, not of another's number.
    if payload.dataset_version_id is not None:
        form.dataset = str(payload.dataset_version_id)
    if payload.recipe_version_id is not None:
        form.recipe = str(payload.recipe_version_id)
    if payload.toml is not None:
        draft = apply_toml(form, payload.toml)
        if draft.problems:
            errors = [
                WrongField("body.toml", str(problem), problem.code)
                for problem in draft.problems
            ]
            raise Problem(422, errors[0].message, code="runs.bad_toml", errors=errors)
    _apply_settings(form, payload.settings)
    return form


def _controls(sets: list[SetIn]) -> dict[str, str]:
    controls: dict[str, str] = {}
    for number, evaluation_set in enumerate(sets, start=1):
        controls[f"eval-{number}-dataset"] = str(evaluation_set.dataset_version_id)
        controls[f"eval-{number}-name"] = evaluation_set.name
        rows = "" if evaluation_set.max_rows is None else str(evaluation_set.max_rows)
        controls[f"eval-{number}-max_rows"] = rows
    return controls


def _apply_settings(form: LaunchDraft, settings: dict[str, Value]) -> None:
    fields = all_fields()
    unknown = [path for path in settings if path not in fields]
    if unknown:
        errors = [
            WrongField(f"body.settings.{path[:80]}", "Unknown setting.")
            for path in unknown
        ]
        raise Problem(
            422,
            f"Unknown setting {unknown[0][:80]!r}.",
            code="runs.unknown_setting",
            errors=errors,
        )
    for path, value in settings.items():
        form.texts[path] = fields[path].write(value)


def checked_launch(form: LaunchDraft) -> Launch:
    """Check the launch; 422 with each invalid field."""
    checked = check_draft(form)
    if checked is not None:
        return checked
    problems = form.problems
    for control, field, chosen in (
        ("dataset", "dataset_version_id", form.dataset_version),
        ("recipe", "recipe_version_id", form.recipe_version),
    ):
        if chosen is None and problems.by_field.get(control):
            problems.by_field[control][0] += f" Send {field}."
    errors = [
        WrongField(_field(control), sentence)
        for control, sentences in problems.by_field.items()
        for sentence in sentences
    ]
    errors += [WrongField("body", sentence) for sentence in problems.general]
    raise Problem(
        422,
        " ".join(problems.messages[:5]),
        code="runs.bad_settings",
        errors=errors,
    )


def _field(control: str) -> str:
    """Name the body field of a control of the launch form."""
    own = {
        "name": "name",
        "model": "model",
        "model_other": "model",
        "dataset": "dataset_version_id",
        "recipe": "recipe_version_id",
    }
    if control in own:
        return f"body.{own[control]}"
    if control.startswith("eval-"):
        _, number, part = control.split("-", 2)
        named = {"dataset": "dataset_version_id"}.get(part, part)
        return f"body.evaluation_sets.{int(number) - 1}.{named}"
    return f"body.settings.{control}"


# The check of a launch, with its estimate.


class LaunchAmountOut(Schema):
    title: str = Field(examples=["Completions per step"])
    value: str = Field(examples=["256"])
    how: str = Field(examples=["32 prompts × 8"])


class MemoryFitOut(Schema):
    device: str = Field(examples=["NVIDIA H100 80GB HBM3"])
    percent: float = Field(description="Share of its memory.", examples=[41.5])


class MemoryOut(Schema):
    """Peak memory of the run."""

    num_bytes: int = Field(examples=[2_400_000_000])
    peak: str = Field(description="When the peak occurs.", examples=["while updating"])
    parts: dict[str, int] = Field(
        description="Bytes at the peak, by part.", examples=[{"Weights": 540_000_000}]
    )
    fits: list[MemoryFitOut] = Field(description="Devices of known workers.")
    problem: str = Field(description="Why there is no estimate.")


class LaunchCheckOut(Schema):
    name: str = Field(examples=["calm-otter-7"])
    amounts: list[LaunchAmountOut]
    memory: MemoryOut
    warnings: list[str] = Field(description="A launch needs `confirm: true` for these.")
    hints: list[str]
    fitted: dict[str, str] = Field(
        description="Settings adapted to the dataset's rows.",
        examples=[{"data.num_eval_rows": "20"}],
    )
    fitted_because: list[str]
    config: dict[str, Any] = Field(description="Settings, in the trainer's format.")
    toml: str = Field(
        description="The same as TOML.", examples=["[optim]\nnum_steps = 200\n"]
    )


@router.post(
    "/launches/check", response=LaunchCheckOut, auth=WRITE, summary="Check a launch"
)
def check_launch(request: ApiRequest, payload: LaunchIn) -> LaunchCheckOut:
    """Runs the checks of a launch with the same body, without launching."""
    form = read_launch(request.auth.team, payload)
    return describe_launch(form, checked_launch(form))


def describe_launch(form: LaunchDraft, checked: Launch) -> LaunchCheckOut:
    summary = summarize(form)
    return LaunchCheckOut(
        name=checked.name,
        amounts=[fill(LaunchAmountOut, amount) for amount in summary.amounts],
        memory=MemoryOut(
            num_bytes=summary.memory.total,
            peak=summary.memory.peak,
            parts={part.title: part.num_bytes for part in summary.memory.parts},
            fits=[
                MemoryFitOut(device=fit.device.name, percent=fit.percent)
                for fit in summary.memory.fits
            ],
            problem=summary.memory.problem,
        ),
        warnings=list(summary.warnings),
        hints=summary.hints,
        fitted=form.fit.texts,
        fitted_because=list(form.fit.sentences),
        config=checked.config.model_dump(mode="json"),
        toml=write_form(form),
    )
