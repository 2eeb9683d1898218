from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_membership_for
from dashboard.accounts.models import Team, User
from dashboard.datasets.forms.generate import GenerateForm
from dashboard.datasets.generated import make_generated
from dashboard.datasets.generators.reasoning_gym import (
    GeneratorsMissing,
    Option,
    Task,
    example_rows,
    list_tasks,
)
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row

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
    form = GenerateForm(team, data, initial={"name": task.name.replace("_", " ")})
    if is_post and form.is_valid():
        try:
            version = _store(request, team, task, form.cleaned_data)
        except ValueError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, f"Generated {version.num_rows:,} rows.")
            return redirect("dataset", team.slug, version.dataset_id)
    context = {
        "team": team,
        "task": task,
        "form": form,
        "options": [(option, _typed(request, option)) for option in task.options],
        "examples": _examples(task),
    }
    status = 422 if is_post else 200
    return render(request, "datasets/generate_task.html", context, status=status)


def _store(
    request: HttpRequest, team: Team, task: Task, chosen: dict[str, Any]
) -> DatasetVersion:
    assert isinstance(request.user, User)
    return make_generated(
        team=team,
        user=request.user,
        task=task,
        name=chosen["name"],
        size=chosen["size"],
        seed=chosen["seed"],
        typed={option.name: _typed(request, option) for option in task.options},
    )


def _typed(request: HttpRequest, option: Option) -> str:
    return request.POST.get(f"option-{option.name}", option.text)


def _examples(task: Task) -> tuple[Row, ...]:
    try:
        return example_rows(task.name, EXAMPLES)
    except ValueError:
        return ()
