"""Included at /<team>/runs/."""

from __future__ import annotations

from django.urls import path

from dashboard.samples.views.annotations import group_marks, run_annotations
from dashboard.samples.views.completions import completions
from dashboard.samples.views.group import group
from dashboard.samples.views.group_tokens import group_tokens
from dashboard.samples.views.groups import groups
from dashboard.samples.views.prompt import run_prompt
from dashboard.samples.views.prompts import prompts_of_runs, run_prompts
from dashboard.samples.views.reward_log import reward_log
from dashboard.samples.views.signals import signals

urlpatterns = [
    path("<int:run_id>/groups/", groups, name="groups"),
    path("<int:run_id>/groups/<int:step>/<int:prompt>/", group, name="group"),
    path(
        "<int:run_id>/groups/<int:step>/<int:prompt>/marks/",
        group_marks,
        name="group_marks",
    ),
    path("<int:run_id>/export/<export>.jsonl", run_annotations, name="run_annotations"),
    path(
        "<int:run_id>/groups/<int:step>/<int:prompt>/tokens.json",
        group_tokens,
        name="group_tokens",
    ),
    path("<int:run_id>/completions/", completions, name="completions"),
    path("<int:run_id>/prompts/", run_prompts, name="run_prompts"),
    path("<int:run_id>/prompts/<int:prompt>/", run_prompt, name="run_prompt"),
    path("prompts/", prompts_of_runs, name="prompts_of_runs"),
    path("<int:run_id>/reward-log/", reward_log, name="run_reward_log"),
    path("<int:run_id>/signals/<chart>.json", signals, name="run_signals"),
]
