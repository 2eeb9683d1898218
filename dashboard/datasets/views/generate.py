from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_membership_for
from dashboard.accounts.models import Team, User
from dashboard.datasets.generators import (
    GeneratorsMissing,
    Option,
    Task,
    example_rows,
    list_tasks,
)
from dashboard.datasets.models import ImportJob
from dashboard.datasets.row import Row
from dashboard.datasets.selections import start_generation
from dashboard.datasets.version_forms import GenerateForm
from dashboard.datasets.views.imports import follow

EXAMPLES = 3


@require_http_methods(["GET", "POST"])
def dataset_generate(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_membership_for(request, team).team
    try:
        task = _task(request)
    except GeneratorsMissing as missing:
        context = {"team": team_, "missing": str(missing)}
        return render(request, "datasets/generate.html", context)
    if task is None:
        context = {"team": team_, "tasks": list_tasks()}
        return render(request, "datasets/generate.html", context)
    return _generate(request, team_, task)


def _task(request: HttpRequest) -> Task | None:
    """The task the address names; 404 when there is none of that name."""
    tasks = {task.name: task for task in list_tasks()}
    wanted = request.GET.get("task")
    if wanted and wanted not in tasks:
        raise Http404("No such task.")
    return tasks[wanted] if wanted else None


def _generate(request: HttpRequest, team: Team, task: Task) -> HttpResponse:
    is_post = request.method == "POST"
    data = request.POST if is_post else None
    initial = {"name": task.name.replace("_", " ")} | request.GET.dict()
    form = GenerateForm(team, data, initial=initial)
    if is_post and form.is_valid():
        try:
            job = _start(request, team, task, form.cleaned_data)
        except ValueError as error:
            form.add_error(None, str(error))
        else:
            return follow(request, job)
    context = {
        "team": team,
        "task": task,
        "form": form,
        "options": [(option, _typed(request, option)) for option in task.options],
        "examples": _examples(task),
    }
    status = 422 if is_post else 200
    return render(request, "datasets/generate_task.html", context, status=status)


def _start(
    request: HttpRequest, team: Team, task: Task, chosen: dict[str, Any]
) -> ImportJob:
    assert isinstance(request.user, User)
    return start_generation(
        team=team,
        user=request.user,
        task=task,
        name=chosen["name"],
        size=chosen["size"],
        seed=chosen["seed"],
        typed={option.name: _typed(request, option) for option in task.options},
    )


def _typed(request: HttpRequest, option: Option) -> str:
    typed = request.POST if request.method == "POST" else request.GET
    return typed.get(f"option-{option.name}", option.text)


def _examples(task: Task) -> tuple[Row, ...]:
    try:
        return example_rows(task.name, EXAMPLES)
    except ValueError:
        return ()
