"""What a run did beside its metrics: its machine, its rules, its tokens, its kin."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.attachments import FILE, attach
from dashboard.api.auth import READ, access_of
from dashboard.api.filters import query_of, refuse_errors
from dashboard.api.paging import Cursor, Limit, Page, page_from
from dashboard.api.schemas import Id, Real, Step, StepBound
from dashboard.reports.document import finite
from dashboard.runs.charts.of_a_run import settings_of
from dashboard.runs.config.files import WRITERS
from dashboard.runs.lineage import Member, find_lineage
from dashboard.runs.queries import get_run
from dashboard.samples.annotations.exports import EXPORTS
from dashboard.samples.forms import RewardLogForm
from dashboard.samples.models import RuleNote
from dashboard.samples.recipes import rule_names
from dashboard.samples.reward_log import find_notes
from dashboard.samples.signals.form import SignalForm
from dashboard.samples.signals.readers import READERS
from dashboard.samples.tokens import read_tokens, which_are_kept
from dashboard.samples.visits import get_group
from dashboard.training.system.samples import Window, as_columns, read_points

router = Router(tags=["Runs"], auth=READ)
Moment = Annotated[float | None, Query(None, ge=0, le=10**12)]


class SystemOut(Schema):
    epoch: list[int] = Field(examples=[[1, 1]])
    time: list[float] = Field(description="Seconds since 1970.")
    step: list[int] = Field(examples=[[3, 4]])
    values: dict[str, list[Real]] = Field(
        description="cpu and gpu_use/0 in per cent; memory, disk_free and gpu_memory/0 "
        "in bytes; disk_read, network_sent and so on in bytes a second.",
        examples=[{"cpu": [41.0, 40.2]}],
    )


@router.get("/{run_id}/system", response=SystemOut, summary="Read a machine's use")
def run_system(
    request: HttpRequest,
    run_id: Id,
    x: Annotated[Literal["time", "step"], Query("time")],
    first: Moment,
    last: Moment,
    after: Moment,
) -> SystemOut:
    """About 500 points between two times or steps; `after` a time: what is new."""
    run = get_run(access_of(request).team, run_id)
    window = Window(axis=x, first=first, last=last)
    return SystemOut(**as_columns(read_points(run.pk, window, after=after)))


class RewardNoteOut(Schema):
    id: int
    step: int = Field(examples=[40])
    prompt_index: int = Field(examples=[17])
    position: int = Field(description="Of the completion.", examples=[0])
    rule: str = Field(examples=["answer"])
    is_error: bool = Field(description="Else it printed this.")
    text: str = Field(examples=["no number in the answer"])


def _note(note: RuleNote) -> RewardNoteOut:
    names = ("step", "position", "rule", "is_error", "text")
    return RewardNoteOut(
        id=note.pk,
        prompt_index=note.group.prompt_index,
        **{name: getattr(note, name) for name in names},
    )


class NoteFilters(Schema):
    text: str = Field("", max_length=200)
    rule: str = Field("", max_length=40)
    kind: Literal["", "error", "print"] = ""
    first_step: StepBound
    last_step: StepBound
    prompt: StepBound


@router.get(
    "/{run_id}/reward-log", response=Page[RewardNoteOut], summary="Read a reward log"
)
def reward_log(
    request: HttpRequest,
    run_id: Id,
    cursor: Cursor,
    limit: Limit,
    filters: Query[NoteFilters],
) -> Page[Any]:
    """What rules printed and failed with, the newest step's first."""
    run = get_run(access_of(request).team, run_id)
    form = RewardLogForm.of_rules(query_of(filters.model_dump()), rule_names(run))
    refuse_errors(form)
    found = find_notes(run, form)
    return page_from(
        found.select_related("group"),
        _note,
        cursor=cursor,
        limit=limit,
        total=found.count(),
    )


class SignalFilters(Schema):
    rows: Literal["dataset", "difficulty", "first_seen"] = Field(
        "dataset", description="Order of the map's rows."
    )
    first_step: StepBound
    last_step: StepBound


class SignalOut(Schema):
    chart: str = Field(examples=["passes"])
    data: dict[str, Any] = Field(
        description="By columns: what the chart draws.",
        examples=[{"steps": [1, 2], "shares": [[0.2, 0.3]]}],
    )


@router.get(
    "/{run_id}/signals/{chart}", response=SignalOut, summary="Read a signal chart"
)
def run_signals(
    request: HttpRequest,
    run_id: Id,
    chart: Literal["map", "rewards", "advantages", "rules", "passes", "anatomy"],
    filters: Query[SignalFilters],
) -> SignalOut:
    """passes: pass@k and maj@k, also of held-out sets; map: what each group taught."""
    run = get_run(access_of(request).team, run_id)
    form = SignalForm.read(query_of(filters.model_dump()))
    refuse_errors(form)
    return SignalOut(chart=chart, data=finite(READERS[chart](run, form)))


class GroupTokensOut(Schema):
    completions: list[dict[str, Any]] = Field(
        description="Of each, by token: text, log-prob, ratio, KL, advantage, what its "
        "gradient weighs, as far as the run keeps them."
    )


@router.get(
    "/{run_id}/groups/{step}/{prompt_index}/tokens",
    response=GroupTokensOut,
    summary="Read a group's tokens",
)
def group_tokens(
    request: HttpRequest, run_id: Id, step: Step, prompt_index: Step
) -> GroupTokensOut:
    """What the update did to each; 404 says for which groups they are kept."""
    run = get_run(access_of(request).team, run_id)
    found = read_tokens(get_group(run, step, prompt_index))
    if found is None:
        raise Http404(which_are_kept(run))
    return GroupTokensOut(completions=finite(found))


@router.get(
    "/{run_id}/marks/{export}.jsonl",
    response=FILE,
    summary="Take what people said as a file",
)
def run_marks(
    request: HttpRequest, run_id: Id, export: Literal["annotations", "preferences"]
) -> HttpResponseBase:
    """Marks, tags and comments; or pairs of good and bad as DPO learns from."""
    run = get_run(access_of(request).team, run_id)
    return attach(
        (line.encode() for line in EXPORTS[export](run)),
        filename=f"{run.name}-{export}.jsonl",
        content_type="application/jsonl",
    )


@router.get(
    "/{run_id}/config.{suffix}",
    response=FILE,
    summary="Take a run's settings as a file",
)
def run_config_file(
    request: HttpRequest, run_id: Id, suffix: Literal["toml", "json"]
) -> HttpResponseBase:
    """For `python -m trainer run`; TOML says which rows its files hold."""
    run = get_run(access_of(request).team, run_id)
    config = settings_of(run)
    if config is None:
        raise Http404(f"{run} was imported: it has no settings.")
    text = WRITERS[suffix](run, config)
    return attach(
        iter([text.encode()]),
        filename=f"{run.name}-{run.pk}.{suffix}",
        content_type="text/plain; charset=utf-8",
    )


class KinOut(Schema):
    id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-7"])
    state: str = Field(examples=["finished"])
    last_step: int
    fork_step: int | None = Field(description="Where it goes on; null: a clone.")
    parent_id: int | None = Field(description="null: the first of them.")


class LineageOut(Schema):
    items: list[KinOut] = Field(description="Parents before what was made of them.")
    is_whole: bool = Field(description="False: there are more than are listed.")


@router.get("/{run_id}/lineage", response=LineageOut, summary="Look at a run's lineage")
def run_lineage(request: HttpRequest, run_id: Id) -> LineageOut:
    """Forks and clones that it comes from, and that were made of it or of those."""
    found = find_lineage(get_run(access_of(request).team, run_id))
    return LineageOut(items=list(_kin(found.root, None)), is_whole=found.is_whole)


def _kin(member: Member, parent_id: int | None) -> list[KinOut]:
    run = member.run
    own = KinOut(
        id=run.pk,
        name=run.name,
        state=run.state,
        last_step=run.last_step,
        fork_step=run.fork_step,
        parent_id=parent_id,
    )
    return [own, *(kin for child in member.children for kin in _kin(child, run.pk))]
