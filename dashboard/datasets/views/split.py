from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_membership_for
from dashboard.datasets.queries import get_dataset, versions_with_use
from dashboard.datasets.splits import list_splits, split_version
from dashboard.datasets.version_forms import SplitForm
from dashboard.datasets.views.detail import chosen


@require_http_methods(["GET", "HEAD", "POST"])
def dataset_split(request: HttpRequest, team: str, dataset_id: int) -> HttpResponse:
    is_post = request.method == "POST"
    membership = get_membership_for(request, team)
    dataset = get_dataset(membership.team, dataset_id)
    versions = versions_with_use(dataset)
    given = request.POST if is_post else request.GET
    version = chosen(versions, given.get("version"))
    version.dataset = dataset  # with its team, which is at hand
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
                messages.success(request, f"{version} was split.")
            url = reverse("dataset_split", args=[team, dataset_id])
            query = urlencode({"version": version.number})
            return redirect(f"{url}?{query}")
    splits = list_splits(version)
    context = {
        "team": membership.team,
        "dataset": dataset,
        "tab": "split",
        "versions": versions,
        "version": version,
        "form": form,
        "splits": splits,
        "is_working": any(not (one.is_done or one.problem) for one in splits),
        "can_write": membership.can_write,
    }
    status = 422 if is_post else 200
    return render(request, "datasets/split.html", context, status=status)
