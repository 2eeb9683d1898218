from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.help.pages import MAX_QUERY, all_pages, grouped_pages, search


@login_not_required
@require_safe
def contents(request: HttpRequest) -> HttpResponse:
    query = request.GET.get("q", "").strip()[:MAX_QUERY]
    context = {"groups": grouped_pages(), "query": query, "found": search(query)}
    return render(request, "help/contents.html", context)


@login_not_required
@require_safe
def topic(request: HttpRequest, topic: str) -> HttpResponse:
    page = all_pages().get(topic)
    if page is None:
        raise Http404(f"There is no help page {topic!r}.")
    context = {"groups": grouped_pages(), "page": page}
    return render(request, "help/topic.html", context)
