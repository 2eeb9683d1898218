"""A recipe tried before it is saved: what it says, and what it gives to completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, access_of
from dashboard.api.filters import query_of, refuse_errors
from dashboard.api.models import Scope
from dashboard.api.problems import Problem, refuse_field
from dashboard.api.resources.recipes import SPEC, read_spec
from dashboard.api.schemas import IdIn, Input, Real, StepIn
from dashboard.probes.bench import (
    MAX_COMPLETIONS,
    Bench,
    BenchGroup,
    Tried,
    bench_of,
    load_bench,
    score_bench,
)
from dashboard.probes.forms import MAX_ROWS, ChoiceForm
from dashboard.rewards.findings import Finding, find_in_groups
from dashboard.rewards.row_check import check_rows
from dashboard.rewards.sentences import recipe_sentence
from dashboard.rewards.workbench import MAX_CHARS, asks_models
from trainer.rewards.spec import Recipe, recipe_bounds

router = Router(tags=["Rewards"], auth=READ)
NOT_SCORED = f"{MAX_COMPLETIONS} completions are scored at once. Send fewer."


class RecipeFindingOut(Schema):
    kind: str = Field(examples=["trivial"])
    sentence: str
    remedy: str
    rows: list[int] = Field(description="That show it.", examples=[[0, 3]])


def _finding(found: Finding) -> RecipeFindingOut:
    return RecipeFindingOut(
        kind=found.kind,
        sentence=found.sentence,
        remedy=found.remedy,
        rows=list(found.positions),
    )


class RecipeCheckIn(Input):
    spec: dict[str, Any] = Field(examples=[SPEC])
    dataset_version_id: IdIn | None = Field(
        default=None,
        description="Rows to look at: references that no rule can read, and rewards "
        "for completions that solve nothing.",
        examples=[12],
    )


class RecipeCheckOut(Schema):
    sentence: str = Field(description="What it rewards.")
    lowest: float = Field(description="Reward that it can give.", examples=[0.0])
    highest: float = Field(examples=[1.2])
    findings: list[RecipeFindingOut] = Field(description="Of the rows.")


@router.post("/check", response=RecipeCheckOut, summary="Check a recipe")
def check_recipe(request: HttpRequest, payload: RecipeCheckIn) -> RecipeCheckOut:
    """What is wrong with it is a 422 that names its fields; nothing is saved."""
    team, recipe = access_of(request).team, read_spec(payload.spec)
    low, high = recipe_bounds(recipe)
    findings = []
    if payload.dataset_version_id is not None:
        form = _choice(team, {"dataset": payload.dataset_version_id})
        findings = check_rows(recipe, form.chosen["dataset"])
    return RecipeCheckOut(
        sentence=recipe_sentence(recipe),
        lowest=low,
        highest=high,
        findings=[_finding(each) for each in findings],
    )


def _choice(team: Team, given: dict[str, Any]) -> ChoiceForm:
    form = ChoiceForm(team, query_of(given))
    form.is_valid()
    names = {"dataset": "dataset_version_id", "run": "run_id", "probe": "probe_id"}
    refuse_errors(form, place="body", names=names)
    if form.chosen["dataset"] is None:
        said = "The team has no dataset yet. Upload one."
        raise refuse_field("body.dataset_version_id", said)
    return form


Text = Annotated[str, Field(max_length=MAX_CHARS)]


class RecipeTryIn(Input):
    spec: dict[str, Any] = Field(examples=[SPEC])
    dataset_version_id: IdIn | None = Field(default=None, examples=[12])
    completions: dict[str, list[Text]] = Field(
        default={},
        max_length=MAX_ROWS,
        description="By row of the dataset version: texts to score.",
        examples=[{"0": ["<answer>2</answer>", "3"]}],
    )
    run_id: IdIn | None = Field(default=None, description="Score its groups instead.")
    steps: str = Field(
        default="",
        max_length=24,
        description="Of the run: 40 or 40-60; empty: its last.",
    )
    probe_id: IdIn | None = Field(default=None, description="Score its groups instead.")
    rows: list[StepIn] = Field(
        default=[],
        max_length=MAX_ROWS,
        description="Only these; empty: the first ones.",
    )
    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    scale: Literal["group_std", "batch_std", "mean", "none"] = "group_std"


class TriedOut(Schema):
    text: str = Field(examples=["<answer>2</answer>"])
    reward: Real = Field(examples=[1.0])
    rules: dict[str, Real] = Field(examples=[{"answer": 1.0}])
    errors: dict[str, str] = Field(description="Why a rule gave no score.")
    advantage: Real = Field(examples=[0.7])
    problem: str = Field(description="Why it was not scored.")


class TriedGroup(Schema):
    row: int = Field(examples=[0])
    step: int | None = Field(description="Of a run.")
    prompt: str | list[dict[str, Any]] = Field(examples=["What is 1 + 1?"])
    answer: str | None = Field(examples=["2"])
    completions: list[TriedOut]
    num_found: int = Field(description="More than are listed where some are left out.")


class RecipeTryOut(Schema):
    items: list[TriedGroup]
    num_found: int = Field(description="Groups, of which 12 are scored.")
    findings: list[RecipeFindingOut] = Field(
        description="What these scores tell of it."
    )
    problem: str = Field(description="Why there are no advantages.")


@router.post("/try", response=RecipeTryOut, summary="Try a recipe")
def try_recipe(request: HttpRequest, payload: RecipeTryIn) -> RecipeTryOut:
    """On texts, or on stored completions of a run or probe; nothing is saved.

    For some seconds: what there was no time for says so.
    """
    access, recipe = access_of(request), read_spec(payload.spec)
    team = access.team
    if asks_models(recipe) and Scope.WRITE not in access.scopes:
        said = "This recipe asks models, which costs money: it takes the scope write."
        raise Problem(403, said)
    form = _choice(team, _given(payload))
    is_pasted = form.chosen["source"] == "pasted"
    bench = _pasted(form, payload.completions) if is_pasted else load_bench(form, {})
    score_bench(bench, recipe, form.advantage, owner=f"team {team.pk}")
    return RecipeTryOut(
        items=[_group(each, recipe) for each in bench.groups],
        num_found=bench.num_found,
        findings=[_finding(each) for each in find_in_groups(bench.scored_groups())],
        problem=bench.problem,
    )


def _given(payload: RecipeTryIn) -> dict[str, Any]:
    """As the workbench's address says it."""
    sources = {"run": payload.run_id, "probe": payload.probe_id}
    named = [name for name, number in sources.items() if number is not None]
    if len(named) + bool(payload.completions) != 1:
        said = "Send completions, or name one run or one probe whose groups are scored."
        raise refuse_field("body.completions", said)
    return {
        **sources,
        "source": named[0] if named else "pasted",
        "dataset": payload.dataset_version_id,
        "steps": payload.steps,
        "rows": ",".join(map(str, payload.rows)),
        "baseline": payload.baseline,
        "scale": payload.scale,
    }


def _pasted(form: ChoiceForm, completions: dict[str, list[str]]) -> Bench:
    version = form.chosen["dataset"]
    rows = [key for key in completions if key.isascii() and key.isdigit()]
    texts = {int(key): completions[key] for key in rows if len(key) < 10}
    bench = bench_of(version, texts)
    if missing := len(completions) - len(bench.groups):
        said = f"{missing} of these are no rows of {version}, which has 0 to "
        raise refuse_field("body.completions", f"{said}{version.num_rows - 1:,}.")
    return bench


def _group(group: BenchGroup, recipe: Recipe) -> TriedGroup:
    return TriedGroup(
        row=group.row.position,
        step=group.step,
        prompt=group.row.prompt_value,
        answer=group.row.answer,
        completions=[_tried(one, recipe) for one in group.tried],
        num_found=group.num_found,
    )


def _tried(one: Tried, recipe: Recipe) -> TriedOut:
    trial = one.trial
    score = trial.score if trial else None
    names = [rule.name for rule in recipe.rules]
    return TriedOut(
        text=one.text,
        reward=one.total,
        rules=dict(zip(names, one.cells, strict=False)),
        errors=score.errors if score else {},
        advantage=one.advantage,
        problem=trial.problem if trial else NOT_SCORED,
    )
