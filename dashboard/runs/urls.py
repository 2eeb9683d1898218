"""Included at /<team>/runs/."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from dashboard.runs.views import (
    acting,
    change,
    charts,
    checkpoints,
    control,
    detail,
    eval_sets,
    launch,
    launch_prompt,
    launch_toml,
    queue,
    saved_views,
    sweep,
    team_presets,
)
from dashboard.runs.views import list as run_list

TABS = "config|checkpoints"  # the others are samples' and training's

urlpatterns: list[URLPattern] = [
    path("", run_list.runs, name="runs"),
    path("charts", charts.chart_settings, name="chart_settings"),
    path("live.json", run_list.runs_live, name="runs_live"),
    path("suggest.json", run_list.runs_suggest, name="runs_suggest"),
    path("act", acting.runs_act, name="runs_act"),
    path("views/", saved_views.runs_view_save, name="runs_view_save"),
    path("views/<slug:code>/", saved_views.runs_view, name="runs_view"),
    path(
        "views/<slug:code>/change",
        saved_views.runs_view_change,
        name="runs_view_change",
    ),
    path("new", launch.run_new, name="run_new"),
    path("new/summary", launch.run_new_summary, name="run_new_summary"),
    path("new/fit", launch.run_new_fit, name="run_new_fit"),
    path("new/prompt", launch_prompt.run_new_prompt, name="run_new_prompt"),
    path("new/sets", eval_sets.run_new_sets, name="run_new_sets"),
    path("new/recipe", launch.run_new_recipe, name="run_new_recipe"),
    path("new/toml", launch_toml.run_new_toml, name="run_new_toml"),
    path("new/from-toml", launch_toml.run_new_from_toml, name="run_new_from_toml"),
    path("new/plan", sweep.run_new_plan, name="run_new_plan"),
    path("new/presets", team_presets.preset_save, name="preset_save"),
    path("presets/<int:pk>", team_presets.preset_change, name="preset_change"),
    # One run: its page, tabs, what is asked of it, stream and curves.
    path("<int:run_id>/", detail.run, name="run"),
    path("<int:run_id>/metrics/", charts.metrics, name="run_metrics"),
    path("<int:run_id>/act", acting.run_act, name="run_act"),
    path("<int:run_id>/describe", acting.run_describe, name="run_describe"),
    path("<int:run_id>/stop", control.run_stop, name="run_stop"),
    path("<int:run_id>/cancel", control.run_cancel, name="run_cancel"),
    path("<int:run_id>/change/", change.run_change, name="run_change"),
    path("<int:run_id>/lineage/", detail.lineage, name="run_lineage"),
    path("<int:run_id>/pause", control.run_pause, name="run_pause"),
    path("<int:run_id>/resume", control.run_resume, name="run_resume"),
    path("<int:run_id>/move", queue.run_move, name="run_move"),
    path("<int:run_id>/hold", queue.run_hold, name="run_hold"),
    path("<int:run_id>/release", queue.run_release, name="run_release"),
    path("<int:run_id>/priority", queue.run_priority, name="run_priority"),
    path("<int:run_id>/stream.json", detail.stream, name="run_stream"),
    path("<int:run_id>/curves.json", charts.curves, name="run_curves"),
    path("<int:run_id>/config.<suffix>", detail.config_file, name="run_config_file"),
    path(
        "<int:run_id>/checkpoints/best",
        checkpoints.run_best_by,
        name="run_best_by",
    ),
    path(
        "<int:run_id>/checkpoints/<slug:name>/pin",
        checkpoints.checkpoint_pin,
        name="checkpoint_pin",
    ),
    path(
        "<int:run_id>/checkpoints/<slug:name>/unpin",
        checkpoints.checkpoint_unpin,
        name="checkpoint_unpin",
    ),
    path(
        "<int:run_id>/checkpoints/<slug:name>/delete",
        checkpoints.checkpoint_delete,
        name="checkpoint_delete",
    ),
    re_path(rf"^(?P<run_id>\d{{1,18}})/(?P<tab>{TABS})/$", detail.tab, name="run_tab"),
]
