"""Included at /<team>/runs/."""

from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.runs.views import launch
from dashboard.runs.views import list as run_list

urlpatterns: list[URLPattern] = [
    path("", run_list.runs, name="runs"),
    path("live.json", run_list.runs_live, name="runs_live"),
    path("new", launch.run_new, name="run_new"),
    path("new/summary", launch.run_new_summary, name="run_new_summary"),
    # One run: its page, tabs, stop, stream and curves.
]
