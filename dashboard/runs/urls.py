"""Included at /<team>/runs/."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from dashboard.runs.views import control, detail, eval_sets, launch
from dashboard.runs.views import list as run_list

TABS = "config|checkpoints"  # the others are samples' and training's

urlpatterns: list[URLPattern] = [
    path("", run_list.runs, name="runs"),
    path("live.json", run_list.runs_live, name="runs_live"),
    path("new", launch.run_new, name="run_new"),
    path("new/summary", launch.run_new_summary, name="run_new_summary"),
    path("new/prompt", launch.run_new_prompt, name="run_new_prompt"),
    path("new/sets", eval_sets.run_new_sets, name="run_new_sets"),
    path("new/recipe", launch.run_new_recipe, name="run_new_recipe"),
    # One run: its page, tabs, what is asked of it, stream and curves.
    path("<int:run_id>/", detail.run, name="run"),
    path("<int:run_id>/stop", control.run_stop, name="run_stop"),
    path("<int:run_id>/pause", control.run_pause, name="run_pause"),
    path("<int:run_id>/resume", control.run_resume, name="run_resume"),
    path("<int:run_id>/stream.json", detail.stream, name="run_stream"),
    path("<int:run_id>/curves.json", detail.curves, name="run_curves"),
    path("<int:run_id>/config.<suffix>", detail.config_file, name="run_config_file"),
    re_path(rf"^(?P<run_id>\d{{1,18}})/(?P<tab>{TABS})/$", detail.tab, name="run_tab"),
]
