"""Runs compared: curves and settings, one prompt in two of them, and sweeps."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpResponse, JsonResponse, QueryDict
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views.decorators.http import require_GET, require_safe

from dashboard.accounts.access import get_membership, look_up
from dashboard.accounts.models import Team
from dashboard.analysis.compare.comparison import (
    MAX_EACH,
    compare_runs,
    draw_charts,
    smoothing_of,
)
from dashboard.analysis.compare.differences import (
    Setting,
    choose_prompt,
    compare_settings,
    find_answers,
    find_changes,
    formula_of,
    join_settings,
    lack_settings,
    list_differences,
    title_of_setting,
)
from dashboard.analysis.compare.pairs import align_pairs, compare_rules
from dashboard.analysis.compare.points import AXES
from dashboard.analysis.compare.seeds import (
    MAX_SEEDS,
    MAX_SETS,
    Arrangement,
    arrange,
)
from dashboard.analysis.compare.selection import (
    MAX_RUNS,
    CompareForm,
    LineStyle,
    Selection,
    join_ids,
    line_styles,
    list_choices,
    offer_alike,
    offer_runs,
    read_selection,
)
from dashboard.analysis.compare.series import MAX_PINS, choose_pins, list_metrics
from dashboard.analysis.compare.verdicts import (
    compare_summaries,
    conclude,
    have_different_rewards,
)
from dashboard.analysis.compare.win_rate import (
    SORTS,
    Choice,
    CommonSteps,
    PairedPrompt,
    make_pair,
    read_choice,
    read_pairs,
    read_sides,
    summarise,
)
from dashboard.analysis.sweeps.axes import Axis, AxisRange
from dashboard.analysis.sweeps.importance import KINDS, MAX_SETTINGS, read_outcomes
from dashboard.analysis.sweeps.summary import (
    MAX_SWEPT,
    SweepForm,
    SweepSummary,
    read_sweep,
)
from dashboard.completions.models import Group
from dashboard.completions.prompts import read_snippets
from dashboard.completions.rewards import sort_by
from dashboard.costs.ledger import main_currency, read_bills
from dashboard.pages.requests import Request
from dashboard.runs.charts.chart import NOTE, has_clipped
from dashboard.runs.models import Run
from trainer.metric_names import title_of

PROMPTS_PER_PAGE = 20
MIN_SWEPT = 5  # runs that are worth plotting by their settings


@require_GET
@look_up(get_membership)
def compare(request: Request, team: Team) -> HttpResponse:
    selection, arrangement, form = _read(request, team)
    text = form.value("q") or ""
    alone = selection.runs[0] if len(selection.runs) == 1 and not text else None
    offered = offer_runs(team, selection, text)
    alike = offer_alike(team, alone) if alone else []
    view = {name: form.value(name) for name in form.fields}
    if selection.runs:
        view["smooth"] = smoothing_of(arrangement, form)
    context = {
        "team": team,
        "selection": selection,
        "arrangement": arrangement,
        "max_sets": MAX_SETS,
        "max_seeds": MAX_SEEDS,
        "max_runs": MAX_RUNS,
        "max_each": MAX_EACH,
        "max_pins": MAX_PINS,
        "form": form,
        "view": view,
        "axis": AXES[view["x"]],
        "currency": main_currency(read_bills(selection.runs).values())
        if view["x"] == "cost"
        else "",
        "choices": list_choices(team, selection) if selection.choices else [],
        "offered": [(run, selection.with_run(run)) for run in offered],
        "alike": [(run, selection.with_run(run)) for run in alike],
        "num_swept": MIN_SWEPT,
        **(_compared(request, selection, arrangement, form) if selection.runs else {}),
    }
    return render(request, "compare/compare.html", context)


@require_GET
@look_up(get_membership)
def compare_charts(request: Request, team: Team) -> HttpResponse:
    """Draw the small charts and the conclusion, for a page whose runs go on."""
    selection, arrangement, form = _read(request, team)
    if not selection.runs:
        return JsonResponse({"charts": [], "answer": "", "is_live": False})
    names = [name for run in selection.runs for name in run.metric_names]
    pins = choose_pins(request.GET.getlist("pin"), names)
    conclusion = conclude(arrangement, window=form.value("window"))
    context = {"team": team, "conclusion": conclusion}
    return JsonResponse(
        {
            "charts": draw_charts(arrangement, form, pins),
            "answer": render_to_string("compare/answer.html", context, request),
            "is_live": _is_live(selection),
        }
    )


@require_GET
@look_up(get_membership)
def compare_figure(request: Request, team: Team) -> HttpResponse:
    """Draw the curves and the table of one metric, for a page whose controls change."""
    selection, arrangement, form = _read(request, team)
    if not selection.runs:
        return JsonResponse({"data": [], "layout": {}})
    comparison = compare_runs(arrangement, form)
    context = {"team": team, "arrangement": arrangement, "found": comparison}
    context |= {"view": {name: form.value(name) for name in form.fields}}
    context |= {"marks": _marks(arrangement)}
    return JsonResponse(
        {
            **comparison.figure,
            "differences": comparison.differences,
            "better": comparison.better,
            "notes": render_to_string("compare/curve_notes.html", context, request),
            "contrasts": render_to_string(
                "compare/baseline_comparisons.html", context, request
            ),
        }
    )


def _read(request: Request, team: Team) -> tuple[Selection, Arrangement, CompareForm]:
    form = CompareForm.read(request.GET)
    selection = read_selection(team, request.GET)
    arrangement = arrange(selection.runs, form.value("by"))
    return selection.kept_in(arrangement), arrangement, form


def _compared(
    request: Request, selection: Selection, arrangement: Arrangement, form: CompareForm
) -> dict[str, Any]:
    sets, runs = arrangement.sets, selection.runs
    settings = join_settings(
        arrangement.settings, [run_set.indices for run_set in sets]
    )
    differing = list_differences(settings)
    firsts = [run_set.run for run_set in sets]
    metrics = list_metrics(runs, shown=form.value("metric"))
    metric_names = [name for _, names in metrics for name in names]
    pins = choose_pins(request.GET.getlist("pin"), metric_names)
    # One metric at length, only where the address names it.
    shows_metric = "metric" in request.GET
    others = sets[1:]
    changes = find_changes(sets[0].run, [run_set.run for run_set in others])
    return {
        **_summary_rows(selection, arrangement),
        **_answers(firsts, form),
        "metrics": metrics,
        "pins": pins,
        "charts": draw_charts(arrangement, form, pins),
        "conclusion": conclude(arrangement, window=form.value("window")),
        "is_live": _is_live(selection),
        "found": compare_runs(arrangement, form) if shows_metric else None,
        "marks": _marks(arrangement),
        "settings": settings if form.value("settings") == "all" else differing,
        "num_settings": len(settings),
        "differing": _by_value(differing, _marks(arrangement)),
        "silent": [
            run_set for run_set in sets if all(map(lack_settings, run_set.runs))
        ],
        "recipes": [
            {"set": run_set, "changes": change, "formula": formula_of(run_set.run)}
            for run_set, change in zip(others, changes, strict=True)
            if change
        ],
        # The first runs of the sets first: they are laid side by side.
        "compared": selection.with_baseline(firsts),
        "base_formula": formula_of(firsts[0]),
    }


def _by_value(
    settings: list[Setting], marks: list[LineStyle]
) -> list[tuple[Setting, list[tuple[str | None, list[LineStyle]]]]]:
    """List each setting with its values, and the marks of the sets that have them.

    Without those that differ within the sets alone, as the seed does.
    """
    listed = []
    for setting in settings:
        values: dict[str | None, list[LineStyle]] = {}
        for mark, (value, _, is_unknown) in zip(marks, setting.cells, strict=True):
            if not is_unknown:
                values.setdefault(value, []).append(mark)
        if len(values) > 1:
            listed.append((setting, list(values.items())))
    return listed


def _is_live(selection: Selection) -> bool:
    return any(not run.has_ended for run in selection.runs)


def _answers(runs: list[Run], form: CompareForm) -> dict[str, Any]:
    """Find what each set's first run wrote to one prompt, by default a random one."""
    text = form.value("find") or ""
    prompt = None if text else form.value("prompt")
    if prompt is None:
        prompt = choose_prompt(runs, text) if len(runs) > 1 else None
    if prompt is None:
        return {"answers": []}
    answers = find_answers(runs, prompt, form.value("step"))
    asked = next(
        (answer_of_set.group for answer_of_set in answers if answer_of_set.group), None
    )
    return {"answers": answers, "asked": asked, "prompt": prompt}


def _marks(arrangement: Arrangement) -> list[LineStyle]:
    """Choose a line style for each set, in the order of the sets."""
    marks = line_styles(run_set.pk for run_set in arrangement.sets)
    return [marks[run_set.pk] for run_set in arrangement.sets]


def _summary_rows(selection: Selection, arrangement: Arrangement) -> dict[str, Any]:
    runs = arrangement.runs
    indices = {run.pk: index for index, run in enumerate(runs)}
    sets = [[indices[run.pk] for run in run_set.runs] for run_set in arrangement.sets]
    columns = compare_summaries(runs, sets)
    marks = _marks(arrangement)
    rows = [
        {
            "set": run_set,
            "run": run_set.run,
            "mark": marks[i],
            "figures": [column.figures[i] for column in columns],
            "is_baseline": i == 0,
            "as_baseline": selection.with_baseline(run_set.runs),
            "without": selection.without(run_set.runs),
            "members": [(run, selection.without([run])) for run in run_set.runs],
            "states": list(Counter(run.state for run in run_set.runs).items()),
            "steps": _range([run.last_step for run in run_set.runs]),
            "ends": _range([run.num_steps for run in run_set.runs]),
        }
        for i, run_set in enumerate(arrangement.sets)
    ]
    return {"rows": rows, "columns": [column.title for column in columns]}


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}–{high}"


# One prompt in two runs, side by side.


@require_safe
@look_up(get_membership)
def compare_prompt(request: Request, team: Team) -> HttpResponse:
    choice = read_choice(team, request.GET)
    view = {name: choice.form.value(name) for name in choice.form.fields}
    context = {"team": team, "choice": choice, "form": choice.form, "view": view}
    if choice.runs:
        common_steps = choice.common_steps()
        pairs = read_pairs(choice.runs, common_steps.found)
        ordered = sort_by(SORTS, pairs, choice.form.value("sort"))
        page = Paginator(ordered, PROMPTS_PER_PAGE).get_page(choice.form.value("page"))
        marks = line_styles(choice.selection.ids)
        context |= {
            "a": choice.runs[0],
            "b": choice.runs[1],
            "marks": [marks[run.pk] for run in choice.runs],
            "common_steps": common_steps,
            "summary": summarise(pairs),
            "is_comparable": not have_different_rewards(compare_settings(choice.runs)),
            "page": page,
            "rows": _with_texts(choice.runs[0], list(page)),
            **_prompt(choice, choice.runs, common_steps),
        }
    return render(request, "compare/prompt.html", context)


def _with_texts(run: Run, pairs: list[PairedPrompt]) -> list[tuple[PairedPrompt, str]]:
    """Add the beginning of each prompt. Two queries."""
    prompts = [pair.common_step.prompts[0] for pair in pairs]
    groups = Group.objects.current().filter(
        run=run,
        prompt_index__in=prompts,
        step__in=[pair.common_step.steps[0] for pair in pairs],
    )
    texts = read_snippets(run, groups.only("prompt_index", "prompt"))
    return [(pair, texts.get(at, "")) for pair, at in zip(pairs, prompts, strict=True)]


def _prompt(
    choice: Choice, runs: tuple[Run, Run], common_steps: CommonSteps
) -> dict[str, Any]:
    prompt = choice.form.value("prompt")
    if prompt is None:
        return {}
    common_step = common_steps.of(prompt, choice.form.value("step"))
    sides = read_sides(runs, common_step) if common_step else None
    if common_step is None or sides is None:
        return {"reason": common_steps.why_not(prompt, runs)}
    ours, theirs = sides
    # The equal steps before and after the one that is shown.
    steps = common_steps.equal_steps(common_step)
    at = common_step.steps[0]
    return {
        "common_step": common_step,
        "sides": sides,
        "prompt_pair": make_pair(common_step, ours.rewards, theirs.rewards),
        "rules": compare_rules(ours, theirs),
        "pairs": align_pairs(ours, theirs, by=choice.form.value("align")),
        "num_equal": len(steps),
        "before": max((step for step in steps if step < at), default=None),
        "after": min((step for step in steps if step > at), default=None),
    }


MAX_COMPARED = 10  # as the compare page does


@require_safe
@look_up(get_membership)
def sweep(request: Request, team: Team) -> HttpResponse:
    """Runs by their settings: parallel coordinates, a scatter, and importance."""
    selection = read_selection(team, request.GET, most=MAX_SWEPT)
    form = SweepForm.read(request.GET)
    context: dict[str, Any] = {
        "team": team,
        "selection": selection,
        "view": {name: form.value(name) for name in form.fields},
        "form": form,
        "kinds": KINDS,
        "max_swept": MAX_SWEPT,
        "max_settings": MAX_SETTINGS,
        "without": request.GET.getlist("without"),
    }
    if selection.runs:
        metric, kind = form.value("metric"), form.value("of")
        outcomes = read_outcomes(selection.runs, metric, kind)
        # The ranges of the address, and the one typed into the form.
        ranges = request.GET.getlist("keep")
        key, low, high = (
            request.GET.get(f"keep_{part}", "").strip()
            for part in ("axis", "from", "to")
        )
        summary = read_sweep(
            selection.runs,
            outcomes,
            title=f"{title_of(metric, with_unit=True)}, {dict(KINDS)[kind]}",
            x=form.value("x") or "",
            without=request.GET.getlist("without"),
            keep=[*ranges, f"{key}:{low}..{high}"] if low or high else ranges,
        )
        best = [line.run.pk for line in summary.lines if line.is_kept][:MAX_COMPARED]
        context |= {
            "sweep": summary,
            "kept": [_chip(summary, chosen, request.GET) for chosen in summary.kept],
            "kept_words": [str(axis_range) for axis_range in summary.kept],
            "compared": join_ids(best),
            "num_compared": len(best),
        }
        context["metrics"] = list_metrics(selection.runs, shown=metric)
        values = [value for value in outcomes.values() if value is not None]
        context["note"] = NOTE if has_clipped(values) else ""
    return render(request, "sweeps/sweep.html", context)


def _chip(
    summary: SweepSummary, axis_range: AxisRange, query: QueryDict
) -> dict[str, str]:
    axis = next(axis for axis in summary.axes if axis.key == axis_range.key)
    remaining = query.copy()
    for name in ("keep_axis", "keep_from", "keep_to"):
        remaining.pop(name, None)
    remaining.setlist(
        "keep", [str(other) for other in summary.kept if other is not axis_range]
    )
    return {"words": _say(axis, axis_range), "query": f"?{remaining.urlencode()}"}


def _say(axis: Axis, axis_range: AxisRange) -> str:
    title = title_of_setting(axis.key)
    if axis.texts is None:
        return f"{title} from {axis_range.low:.4g} to {axis_range.high:.4g}"
    inside = [
        text
        for place, text in enumerate(axis.texts)
        if axis_range.low <= place <= axis_range.high
    ]
    return f"{title}: {', '.join(inside) or 'none'}"
