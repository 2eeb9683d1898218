"""Datasets generated, selected or split; prompt previews and environments."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import (
    get_membership_for,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.completions.turns import Block
from dashboard.datasets.environments import (
    READY,
    EnvironmentForm,
    Try,
    add_ready,
    save_environment,
    taskset_environment,
)
from dashboard.datasets.generators import (
    GeneratorsMissing,
    Task,
    example_rows,
    list_tasks,
    list_tasksets,
    open_taskset,
)
from dashboard.datasets.import_forms import TargetForm, form_error
from dashboard.datasets.models import Dataset
from dashboard.datasets.queries import (
    get_dataset,
    list_datasets,
    versions_with_use,
)
from dashboard.datasets.row import Row
from dashboard.datasets.row_filters import RowFilterForm, read_rows_at
from dashboard.datasets.row_search import COUNT_SECONDS, Count, Search, count_matching
from dashboard.datasets.selections import source_of_view, start_generation
from dashboard.datasets.splits import list_splits, split_version
from dashboard.datasets.token_preview import (
    Preview,
    list_models,
    preview_version,
    read_row,
)
from dashboard.datasets.tokenizer_pool import refuse_environment
from dashboard.datasets.version_forms import GenerateForm, PromptForm, SplitForm
from dashboard.jobs.models import JobState
from dashboard.pages.dataset_uploads import follow
from dashboard.pages.requests import Request, choose_version, read_number, redirect_with
from dashboard.project.errors import UserError, or_404
from dashboard.project.schema_forms import OptionsForm

EXAMPLES = 3
OFFERED = 10  # datasets for an environment, and rows to try it on


@require_http_methods(["GET", "POST"])
@look_up(get_membership_for)
def dataset_generate(request: Request, team: Team) -> HttpResponse:
    tasks, problem = dict[str, Task](), ""
    try:
        tasks = {task.name: task for task in list_tasks()}
    except GeneratorsMissing as missing:
        problem = str(missing)
    name = request.GET.get("task")
    if name in tasks:
        return _make_rows(request, team, tasks[name])
    if name and tasks:
        raise Http404("No such task.")
    context = {"team": team, "tasks": tasks.values(), "missing": problem}
    return render(request, "datasets/generate.html", context)


def _make_rows(request: Request, team: Team, task: Task) -> HttpResponse:
    """Show the form of a task or taskset; a POST starts the job that makes its rows."""
    initial: dict[str, Any] = {"name": task.name.replace("_", " ")}
    options = OptionsForm(task.options, {})
    kind = "taskset" if task.is_taskset else "generator"
    of_task = team.import_jobs.filter(source__kind=kind, source__task=task.name)
    if job := of_task.filter(pk=read_number(request.GET.get("job")) or 0).first():
        initial = {"name": job.name, "size": job.num_to_read} | job.source
        options.fill(initial.get("options", {}))
    is_post = request.method == "POST"
    form = GenerateForm(team, request.POST if is_post else None, initial=initial)
    if task.is_taskset:
        del form.fields["seed"]
    if is_post:
        options = OptionsForm(task.options, request.POST, prefix="option-")
        values, environment = options.read(), None
        if form.is_valid() and values is not None:
            try:
                if task.is_taskset:
                    environment = taskset_environment(task.name, values)
                return follow(
                    request,
                    start_generation(
                        team=team,
                        user=request.user,
                        task=task,
                        options=values,
                        environment=environment,
                        **form.cleaned_data,
                    ),
                )
            except ValueError as error:
                form.add_error(None, form_error(error))
    examples: Sequence[Row] = ()
    if not task.is_taskset:
        with suppress(ValueError):
            examples = example_rows(task.name, EXAMPLES)
    return render(
        request,
        "datasets/generate_task.html",
        {
            "team": team,
            "task": task,
            "form": form,
            "options": options,
            "examples": examples,
        },
        status=422 if is_post else 200,
    )


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, dataset=get_dataset)
def dataset_prompt(
    request: Request, membership: Membership, team: Team, dataset: Dataset
) -> HttpResponse:
    """Show the page; a POST returns the preview and stores nothing."""
    versions = versions_with_use(dataset)
    preview_context = {
        "preview_url": reverse("dataset_prompt", args=[team.slug, dataset.pk]),
        "preview_form": "#prompt-form",
    }
    if request.method == "POST":
        key = request.POST.get("dataset") or str(versions[0].pk)
        chosen = next((v for v in versions if str(v.pk) == key), None)
        version = or_404(chosen, "No such version.")
        form = PromptForm(request.POST)
        if form.is_valid():
            preview = preview_version(
                team,
                version,
                model=form.cleaned_data["model"],
                row=read_row(request.POST),
                data=form.settings,
            )
        else:
            preview = Preview(problem=form.first_problem)
        context = {"preview": preview, **preview_context}
        return render(request, "datasets/prompt_preview.html", context)
    models = list_models(team)
    context = {
        "team": team,
        "dataset": dataset,
        "versions": versions,
        "version": choose_version(versions, request.GET.get("version")),
        "tab": "prompt",
        "form": PromptForm.prefilled(request.GET, model=next(iter(models), "")),
        "models": models,
        "can_write": membership.can_write,
        **preview_context,
    }
    return render(request, "datasets/prompt_page.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, dataset=get_dataset)
def dataset_save(
    request: Request, membership: Membership, team: Team, dataset: Dataset
) -> HttpResponse:
    """Save the rows of the view in the URL as a dataset."""
    is_post = request.method == "POST"
    version = choose_version(versions_with_use(dataset), request.GET.get("version"))
    version.dataset = dataset  # with its team; avoids a query
    view = RowFilterForm.read(version, request.GET)
    if view.errors:
        raise Http404("The filters in the URL are invalid.")
    counted = min(read_number(request.GET.get("counted")) or 0, version.num_rows)
    matching = min(read_number(request.GET.get("matching")) or 0, counted)
    count = count_matching(
        Search(version=version, conditions=view.conditions),
        seconds=COUNT_SECONDS,
        before=Count(num_matching=matching, num_searched=counted, is_exact=False),
    )
    form = TargetForm(
        team,
        name=f"{dataset.name[:70]} selection",
        data=request.POST if is_post else None,
    )
    if is_post and form.is_valid():
        source = source_of_view(version, view)
        job = form.start(parent=version, source=source, user=membership.user)
        if job:
            return follow(request, job)
    context = {
        "team": team,
        "dataset": dataset,
        "version": version,
        "view": view,
        "count": count,
        "form": form,
        "can_write": membership.can_write,
    }
    is_count = "counted" in request.GET and "HX-Request" in request.headers
    template = "save_count" if is_count else "save"
    return render(
        request, f"datasets/{template}.html", context, status=422 if is_post else 200
    )


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, dataset=get_dataset)
def dataset_split(
    request: Request, membership: Membership, team: Team, dataset: Dataset
) -> HttpResponse:
    is_post = request.method == "POST"
    versions = versions_with_use(dataset)
    fields = request.POST if is_post else request.GET
    version = choose_version(versions, fields.get("version"))
    version.dataset = dataset  # with its team; avoids a query
    form = SplitForm(version, request.POST if is_post else None)
    if is_post and form.is_valid():
        split = split_version(
            version,
            rule=form.rule,
            train_name=form.cleaned_data["train_name"],
            eval_name=form.cleaned_data["eval_name"],
            user=membership.user,
        )
        if split.problem:
            split.delete()
            form.add_error(None, split.problem)
        else:
            if split.is_done:
                messages.success(request, f"Split {version} into two datasets.")
            url = reverse("dataset_split", args=[team.slug, dataset.pk])
            query = urlencode({"version": version.number})
            return redirect(f"{url}?{query}")
    splits = list_splits(version)
    context = {
        "team": team,
        "dataset": dataset,
        "tab": "versions",
        "versions": versions,
        "version": version,
        "form": form,
        "splits": splits,
        "is_working": any(not (split_.is_done or split_.problem) for split_ in splits),
        "can_write": membership.can_write,
    }
    return render(
        request, "datasets/split.html", context, status=422 if is_post else 200
    )


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for)
def dataset_environments(
    request: Request, membership: Membership, team: Team
) -> HttpResponse:
    """Offer environments with rows; a POST adds one as a dataset.

    A taskset in the URL has a form of its own.
    """
    if name := request.GET.get("task"):
        versions = list_tasksets()
        if name not in versions or not membership.can_write:
            raise Http404("No such taskset.")
        try:
            return _make_rows(request, team, open_taskset(name, versions[name]))
        except UserError as error:
            messages.error(request, str(error))
            return redirect("dataset_environments", team.slug)
    if request.method == "POST":
        key = request.POST.get("ready", "")
        if key not in READY:
            raise Http404("No such environment.")
        try:
            version = add_ready(team, key, request.user)
        except ValueError as error:
            messages.error(request, str(error))
            return redirect("dataset_environments", team.slug)
        return redirect_with(
            request,
            f"Added {version}.",
            *("dataset_environment", team.slug, version.dataset_id),
        )
    return render(
        request,
        "datasets/environments.html",
        {
            "team": team,
            "ready": READY,
            # First those that are allowed.
            "tasksets": sorted(
                (
                    bool(refuse_environment({"kind": "verifiers", "taskset": name})),
                    name,
                    version,
                )
                for name, version in list_tasksets().items()
            ),
            "datasets": list_datasets(team)[:OFFERED],
            "can_write": membership.can_write,
        },
    )


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, dataset=get_dataset)
def dataset_environment(
    request: Request, membership: Membership, team: Team, dataset: Dataset
) -> HttpResponse:
    """Show a version's environment; a POST tries it on a row, or saves a version."""
    posted, status = request.POST, 200
    versions = versions_with_use(dataset)
    version = choose_version(versions, request.GET.get("version"))
    version.dataset = dataset  # with its team; avoids a query
    rows = list(read_rows_at(version.rows.all(), range(min(version.num_rows, OFFERED))))
    number = read_number(posted.get("row"))
    first = next(iter(rows), None)  # None: deleted from the database
    row = next((row for row in rows if row.position == number), first)
    form, tried = EnvironmentForm.of(version), Try({})
    if request.method == "POST":
        form, action = EnvironmentForm(posted), posted.get("action")
        environment = form.read()
        tried = Try(posted if action != "restart" else {})
        if environment is None:
            status = 422
        elif action == "save":
            try:
                job = save_environment(version, environment, user=request.user)
                if job.state != JobState.FAILED:
                    return follow(request, job)
                form.errors["kind"], status = [job.error], 422
            except UserError as error:
                form.errors["taskset"], status = [str(error)], 422
        elif environment and row and action == "try":
            tried.play(row, environment, team=team)
            if tried.reply.get("is_source"):
                form.errors["source"] = [tried.reply.pop("problem")]
    rounds = accumulate(turn.author == "policy" for turn in tried.turns)
    context = {
        "team": team,
        "dataset": dataset,
        "versions": versions,
        "version": version,
        "tab": "environment",
        "form": form,
        "rows": rows,
        "row": row,
        "tried": tried,
        "blocks": [
            Block(record=turn, text=turn.text, round=number, num_tokens=None)
            for turn, number in zip(tried.turns, rounds, strict=True)
        ],
        "can_write": membership.can_write,
    }
    return render(request, "datasets/environment.html", context, status=status)
