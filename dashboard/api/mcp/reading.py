"""The tools that change nothing; each calls the API's operations."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from django.urls import reverse
from pydantic import Field

from dashboard.analysis.audit.findings import audit
from dashboard.analysis.audit.jumps import Around, explain_jump
from dashboard.analysis.questions.services import get_question, labelled_examples
from dashboard.analysis.rescoring.services import list_rescorings
from dashboard.api.alerts import alerts
from dashboard.api.auth import ApiRequest
from dashboard.api.checkpoints import checkpoints, models
from dashboard.api.compare import CurveFilters, compare, compare_curves
from dashboard.api.completions import (
    CompletionFilters,
    FoundCompletion,
    completions,
)
from dashboard.api.datasets import DatasetVersionOut
from dashboard.api.launches import presets
from dashboard.api.mcp.limits import (
    PAGE_SIZE,
    Listing,
    read_place,
    shorten,
)
from dashboard.api.mcp.tools import DATA, Arguments, tool
from dashboard.api.measurements import group_tokens, metrics
from dashboard.api.problems import refuse_field
from dashboard.api.questions import question
from dashboard.api.recipes import (
    RecipeCheckIn,
    RecipeTryIn,
    check_recipe,
    find_recipe_version,
    rule_kinds,
    try_recipe,
    version_out,
)
from dashboard.api.rescoring import RescoringIn, rescoring
from dashboard.api.runs import RunDetail, RunOut, runs
from dashboard.api.schemas import IdIn, StepIn
from dashboard.api.sweeps import SweptFilters, weigh_sweep
from dashboard.completions.models import Group, Tag
from dashboard.completions.rewards import rule_names
from dashboard.datasets.queries import list_versions
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.config.fields import all_fields
from dashboard.runs.config.snapshot import compare_with_defaults
from dashboard.runs.headline import read_headline
from dashboard.runs.models import Run
from dashboard.runs.progress import seconds_left
from dashboard.runs.queries import get_run as find_run
from dashboard.runs.queries import list_children, settings_of
from dashboard.transfers.export_runs import metric_names

RESTING_SECONDS, LEAST_SECONDS, MOST_SECONDS = 30, 5, 900
# Characters of a thinned point at most: a step, its value, the lowest and the highest
# one; and of a metric, with its name.
POINT_CHARS, SERIES_CHARS = 48, 256


def page_of(request: ApiRequest, run: int) -> str:
    address = reverse("run", args=[request.auth.team.slug, run])
    return request.build_absolute_uri(address)


class Paged(Arguments):
    limit: Annotated[int, Field(ge=1, le=PAGE_SIZE)] = 20
    cursor: Annotated[
        str, Field(max_length=200, description="`next` of the last answer")
    ] = ""


class FindRuns(Paged):
    query: Annotated[str, Field(max_length=2_000)] = Field(
        default="",
        description="Filter such as `state = running and reward/mean > 0.5` or "
        "`tag = baseline`",
    )
    sort: Annotated[str, Field(max_length=200)] = Field(
        default="-num", description="Column, such as -reward/mean.best; -num: newest"
    )


@tool(
    "List the team's runs with state, steps, last and best reward, model, dataset and "
    "reward. Begin here. get_run tells more of one run."
)
def find_runs(request: ApiRequest, arguments: FindRuns) -> Listing:
    page, start = read_place(arguments.cursor)
    listed = runs(
        request, cursor=page, limit=PAGE_SIZE, q=arguments.query, sort=arguments.sort
    )
    return Listing(
        name="runs",
        items=[_run(request, row) for row in listed.items],
        start=start,
        page=page,
        following=listed.next_cursor,
        limit=arguments.limit,
        fields={"num_found": listed.total},
    )


def _run(request: ApiRequest, row: RunOut) -> dict[str, Any]:
    dataset, recipe = row.dataset_version, row.recipe_version
    return {
        **row.model_dump(include={"id", "name", "state", "num_steps", "model"}),
        "step": row.last_step,
        "reward_last": row.last_reward,
        "reward_best": row.best_reward,
        "dataset": dataset and f"{dataset.name}@{dataset.number}",
        "recipe": recipe and f"{recipe.name}@{recipe.number}",
        "tags": row.tags or None,
        "url": page_of(request, row.id),
    }


class OneRun(Arguments):
    run: IdIn


@tool(
    "Read one run: a verdict on its rewards, why it ended, alerts, the largest jump of "
    "the reward with its causes, settings that differ from the defaults, parent, forks "
    f"and checkpoints (newest first). {DATA}"
)
def get_run(request: ApiRequest, arguments: OneRun) -> dict[str, Any]:
    run = find_run(request.auth.team, arguments.run)
    row, headline = RunDetail.of(run), read_headline(run)
    fired = alerts(
        request,
        cursor="",
        limit=10,
        state=None,
        run_id=run.pk,
        rule_id=None,
        is_open=False,
    )
    return {
        **_run(request, row),
        "verdict": headline.verdict.text,
        "numbers": {
            tile.title: " ".join(filter(None, (tile.value, tile.note, tile.change)))
            for tile in headline.tiles
        },
        "ended_because": row.fail_reason or row.stop_reason or row.pause_reason or None,
        "notes": {"text": row.notes} if row.notes else None,
        "alerts": [
            alert.model_dump(include={"name", "text", "step", "state"})
            for alert in fired.items
        ],
        "jump": _jump(explain_jump(run, headline.reward)),
        "changed_settings": _changed_settings(run),
        "parent": row.forked_from_id or row.cloned_from_id,
        "fork_step": row.fork_step,
        "forks": [child.pk for child in list_children(run)[:PAGE_SIZE]],
        "checkpoints": _checkpoints(request, run),
        "rescorings": [
            {"id": scored.pk} for scored in list_rescorings(request.auth.team, run)[:5]
        ],
        "check_again_seconds": _check_again(run),
    }


def _jump(around: Around | None) -> dict[str, Any] | None:
    """Tell what changed around the largest jump of the reward."""
    if around is None:
        return None
    change, held_out = around.change, around.held_out
    return {
        "step": change.step,
        "reward_before": change.before.mean,
        "reward_after": change.after.mean,
        "rules": [
            {"rule": r.rule, "before": r.before, "after": r.after, "part": r.part}
            for r in around.rules[:8]
        ],
        "metrics": [
            {
                "name": m.metric,
                "before": m.change.before.mean,
                "after": m.change.after.mean,
            }
            for m in around.jumping[:8]
        ],
        "held_out": held_out
        and {
            "name": held_out.metric,
            "steps": held_out.steps,
            "scores": held_out.scores,
        },
        "setting_changes": [
            {"step": m.step, "title": m.title, "settings": m.settings}
            for m in around.moments
        ],
    }


def _changed_settings(run: Run) -> dict[str, str] | None:
    config = settings_of(run)
    if config is None:
        return None
    parts = compare_with_defaults(config)
    settings = [setting for part in parts for setting in part.settings]
    return {setting.path: setting.short for setting in settings if setting.differs}


def _checkpoints(request: ApiRequest, run: Run) -> list[dict[str, Any]]:
    items = [row for row in checkpoints(request, run.pk).items if row.is_there]
    return [
        item.model_dump(include={"name", "step", "is_best", "score"})
        for item in items[:10]
    ]


def _check_again(run: Run) -> int | None:
    """Propose when to look again: after a tenth of the remaining time."""
    if run.has_ended:
        return None
    seconds = seconds_left(run)
    wait = RESTING_SECONDS if seconds is None else seconds / 10
    return round(min(max(wait, LEAST_SECONDS), MOST_SECONDS))


class GetMetrics(Arguments):
    run: IdIn
    names: Annotated[
        list[Annotated[str, Field(max_length=120)]], Field(max_length=8)
    ] = Field(default=[], description="None: only list the names")
    first_step: StepIn | None = None
    last_step: StepIn | None = None
    points: Annotated[int, Field(ge=2, le=100)] = 40


@tool(
    "Read metrics of a run over its steps, thinned to `points` intervals: the value at "
    "the last step of each, its lowest and highest, so that spikes stay. `width` is "
    "the number of steps of an interval. Without names, list the run's metrics."
)
def get_metrics(request: ApiRequest, arguments: GetMetrics) -> dict[str, Any]:
    run = find_run(request.auth.team, arguments.run)
    offered = metric_names(run)
    answer: dict[str, Any] = {"run": run.pk, "url": page_of(request, run.pk)}
    if not arguments.names:
        return {**answer, "names": offered}
    names = [name for name in arguments.names if name in offered]
    if unknown := set(arguments.names) - set(names):
        answer["unknown_names"] = {
            name: get_close_matches(name, offered, n=3, cutoff=0.4)
            for name in sorted(unknown)
        }
    if not names:
        return answer
    room = arguments.max_chars // len(names) - SERIES_CHARS
    if room < 2 * POINT_CHARS:
        raise refuse_field(
            "names", "Ask for fewer metrics, or send a larger max_chars."
        )
    read = metrics(
        request,
        run.pk,
        cursor="",
        first_step=arguments.first_step,
        last_step=arguments.last_step,
        names=",".join(names),
        limit=1,
        points=min(arguments.points, room // POINT_CHARS),
    )
    better = {metric.name: metric.better for metric in read.metrics}
    return {
        **answer,
        "series": {
            name: {**series.model_dump(), "better": better[name]}
            for name, series in read.series.items()
        },
    }


class SearchCompletions(Paged, CompletionFilters):
    run: IdIn
    limit: Annotated[int, Field(ge=1, le=PAGE_SIZE)] = 5
    chars: Annotated[int, Field(ge=50, le=20_000)] = Field(
        default=800, description="Characters of each text"
    )
    tokens: bool = Field(
        default=False, description="One completion, with the log-prob of each token"
    )


@tool(
    "Search a run's completions, with rewards, scores by rule, advantages and texts. "
    "sort reward lists the worst first, -reward the best. first_step, last_step and "
    f"prompt of one step choose one group. {DATA}"
)
def search_completions(request: ApiRequest, arguments: SearchCompletions) -> Listing:
    run = find_run(request.auth.team, arguments.run)
    _refuse_unknown("rule", arguments.rule, rule_names(run))
    tags = Tag.objects.filter(group__run=run).values_list("name", flat=True)
    _refuse_unknown("tag", arguments.tag, list(tags.distinct()))
    page, start = read_place(arguments.cursor)
    limit = 1 if arguments.tokens else arguments.limit
    found = completions(request, run.pk, page, arguments)
    chosen = found.items[start : start + limit]
    groups = Group.objects.current().filter(
        run=run,
        step__in={row.step for row in chosen},
        prompt_index__in={row.prompt_index for row in chosen},
    )
    by_place = {(group.step, group.prompt_index): group for group in groups}
    items: list[dict[str, Any]] = [{}] * start
    for row in found.items[start:]:
        # A group's prompt stands with its first completion.
        group = by_place.pop((row.step, row.prompt_index), None)
        item: dict[str, Any] = {
            "step": row.step,
            "prompt": row.prompt_index,
            "prompt_text": group and {"text": group.prompt},
            "answer": group and group.answer_value,
            "position": row.position,
            "reward": row.reward,
            "rules": row.rule_scores,
            "advantage": row.advantage,
            "length": row.num_tokens,
            "end": row.end_reason,
            "text": row.text,
            "turns": [turn.model_dump() for turn in row.turns] or None,
        }
        items.append(shorten(item, arguments.chars))
    if arguments.tokens and chosen:
        items[start]["tokens"] = _tokens(request, run, chosen[0])
    return Listing(
        name="items",
        items=items,
        start=start,
        page=page,
        following=found.next_cursor,
        limit=limit,
        fields={
            "num_found": found.num_found,
            "is_counted": found.is_counted,
            "url": f"{page_of(request, run.pk)}completions/",
        },
    )


def _refuse_unknown(argument: str, name: str, names: Collection[str]) -> None:
    """Refuse a name that the run does not have; the error has the nearest ones."""
    if not name or name in names:
        return
    known = get_close_matches(name, names, n=10, cutoff=0) or ["none"]
    raise refuse_field(
        argument,
        f"The run has no {argument} {name!r}. Its nearest: {', '.join(known)}.",
        f"completions.unknown_{argument}",
    )


def _tokens(request: ApiRequest, run: Run, row: FoundCompletion) -> dict[str, Any]:
    """Return a completion's tokens and their log-probs; 404 if they are not stored."""
    group = group_tokens(request, run.pk, row.step, row.prompt_index)
    tokens: dict[str, Any] = next(
        (item for item in group.completions if item["position"] == row.position), {}
    )
    return {"text": tokens.get("pieces"), "logprob": tokens.get("logprob")}


class CompareRuns(Arguments):
    runs: Annotated[list[IdIn], Field(min_length=2, max_length=20)] = Field(
        description="The first is the baseline"
    )
    metric: Annotated[str, Field(max_length=120)] = "reward/mean"
    by: Literal["run", "seeds"] = Field(
        default="run",
        description="seeds: runs that differ only in their seed form sets",
    )


@tool(
    "Compare runs by one metric: last, best and the mean of the last steps, each set "
    "against the first with a 95% interval, and the settings that differ."
)
def compare_runs(request: ApiRequest, arguments: CompareRuns) -> dict[str, Any]:
    named = ",".join(map(str, dict.fromkeys(arguments.runs)))
    by = {"run": "none", "seeds": "seeds"}[arguments.by]
    filters = CurveFilters.model_validate(
        {"runs": named, "metric": arguments.metric, "by": by}
    )
    curves = compare_curves(request, filters)
    sets = [
        run_set.model_dump(exclude={"band", "difference", "num_found", "varied"})
        for run_set in curves.sets
    ]
    has_interval = any(run_set.window_low is not None for run_set in curves.sets)
    address = reverse("compare", args=[request.auth.team.slug])
    return {
        "metric": curves.metric,
        "better": curves.better,
        "first_step": curves.first_step,
        "last_step": curves.last_step,
        "sets": sets,
        "note": None
        if has_interval
        else "Each set has one run, so there is no interval over seeds.",
        "settings_that_differ": {
            setting.key: setting.values for setting in compare(request, named).settings
        },
        "url": request.build_absolute_uri(f"{address}?runs={named}"),
    }


class ListInputs(Paged):
    kind: Literal["preset", "model", "dataset", "recipe", "rule_kind", "setting"]
    query: Annotated[str, Field(max_length=200)] = Field(
        default="", description="Words that each item contains"
    )


@tool(
    "List what launch_run and try_reward take: presets, models, versions of datasets "
    "and rewards (by id), kinds of rules with parameters, or settings with default, "
    "range and meaning."
)
def list_inputs(request: ApiRequest, arguments: ListInputs) -> Listing:
    words = arguments.query.lower().split()
    items = [
        item
        for item in _inputs(request, arguments.kind)
        if all(word in str(item).lower() for word in words)
    ]
    return Listing(
        name="items",
        items=items,
        start=read_place(arguments.cursor)[1],
        limit=arguments.limit,
        fields={"num_found": len(items)},
    )


def _inputs(request: ApiRequest, kind: str) -> list[dict[str, Any]]:
    team = request.auth.team
    match kind:
        case "preset":
            fields = {"key", "title", "summary", "settings"}
            return [row.model_dump(include=fields) for row in presets(request).presets]
        case "model":
            published = models(request, cursor="", limit=200).items
            return [
                *({"model": m.path, "title": m.title} for m in presets(request).models),
                *(
                    {"model": m.path, "title": m.name, "step": m.step}
                    for m in published
                ),
            ]
        case "dataset":
            return [
                DatasetVersionOut.of(version).model_dump(
                    include={"id", "dataset", "number", "num_rows", "mapping"}
                )
                for version in list_versions(team)
            ]
        case "recipe":
            versions = RecipeVersion.objects.filter(recipe__team=team)
            return [
                version_out(version).model_dump(
                    include={"id", "recipe", "number", "spec"}
                )
                for version in versions.select_related("recipe").order_by("-pk")
            ]
        case "rule_kind":
            return [rule.model_dump() for rule in rule_kinds(request).items]
    return [
        {
            "path": setting.path,
            "title": setting.title,
            "meaning": setting.help,
            "unit": setting.unit or None,
            "default": setting.default_text,
            "choices": list(setting.choices) or None,
            "minimum": setting.minimum,
            "maximum": setting.maximum,
            "above": setting.above,
            "below": setting.below,
        }
        for setting in all_fields().values()
    ]


def read_reward(
    request: ApiRequest, arguments: RecipeTryIn | RescoringIn
) -> dict[str, Any] | None:
    """Read the reward: of a saved version, or as it was sent."""
    spec = arguments.spec
    if arguments.recipe_version_id is not None:
        team = request.auth.team
        spec = find_recipe_version(team, arguments.recipe_version_id).spec
    return spec


class TryReward(Arguments, RecipeTryIn):
    pass


@tool(
    "Score up to 20 completions with a reward, without saving: texts for a dataset "
    "row, or a run's group by step and prompt. With `dataset`, warn of rows that it "
    f"cannot score and of completions that hack it. {DATA}",
    openWorldHint=True,
)
def try_reward(request: ApiRequest, arguments: TryReward) -> dict[str, Any]:
    answer = try_recipe(request, arguments).model_dump()
    if arguments.dataset_version_id is not None:
        check = RecipeCheckIn(
            spec=read_reward(request, arguments) or {},
            dataset_version_id=arguments.dataset_version_id,
        )
        answer["checks"] = [
            f"{finding.sentence} {finding.remedy}".strip()
            for finding in check_recipe(request, check).findings
        ]
    return answer


class GetAnalysis(Arguments):
    kind: Literal["rescoring", "question", "audit", "sweep"]
    id: IdIn = Field(description="Its ID; of an audit, the run's")
    metric: Annotated[str, Field(max_length=120)] = "reward/mean"


@tool(
    "Read a result: a rescoring or a question with its progress; a run's audit (which "
    "signals of its completions changed, such as length and repetition); or the "
    f"importance of a sweep's settings. {DATA}"
)
def get_analysis(request: ApiRequest, arguments: GetAnalysis) -> dict[str, Any]:
    match arguments.kind:
        case "rescoring":
            return rescoring(request, arguments.id).model_dump(exclude={"spec"})
        case "question":
            asked = get_question(request.auth.team, arguments.id)
            return {
                **question(request, arguments.id).model_dump(),
                "examples": [
                    {"label": place.label, "why": place.why, "text": place.text}
                    | {"step": place.step, "prompt": place.group.prompt_index}
                    for place in labelled_examples(asked)
                ],
                "url": f"{page_of(request, asked.run_id)}questions/{asked.pk}/",
            }
        case "sweep":
            filters = SweptFilters.model_validate(
                {"sweep_id": arguments.id, "metric": arguments.metric}
            )
            return weigh_sweep(request, filters).model_dump()
    run = find_run(request.auth.team, arguments.id)
    read = audit(run)
    return {
        "run": run.pk,
        "last_step": read.last_step,
        "verdict": read.verdict.why,
        "num_completions": read.num_completions,
        "findings": [
            {
                "signal": finding.signal.key,
                "title": finding.signal.title,
                "status": finding.status,
                "step": finding.step,
                "before": finding.change and finding.change.before.mean,
                "after": finding.change and finding.change.after.mean,
                "unit": finding.signal.unit,
                "missing": finding.signal.missing
                if finding.status == "missing"
                else None,
            }
            for finding in read.findings
        ],
        "url": f"{page_of(request, run.pk)}health/",
    }
