"""Included at /<team>/."""

from __future__ import annotations

from django.urls import path

from dashboard.probes.views import chat, probe, workbench

urlpatterns = [
    path("runs/<int:run_id>/chat/", chat.run_chat, name="run_chat"),
    path("chats/<int:chat_id>/", chat.chat_answers, name="chat_answers"),
    path("chats/<int:chat_id>/stream.json", chat.chat_stream, name="chat_stream"),
    path("chats/<int:chat_id>/stop", chat.chat_stop, name="chat_stop"),
    path("rewards/workbench", workbench.workbench, name="workbench"),
    path(
        "rewards/workbench/scores", workbench.workbench_scores, name="workbench_scores"
    ),
    path("rewards/workbench/rows", workbench.workbench_rows, name="workbench_rows"),
    path("rewards/findings", workbench.recipe_findings, name="recipe_findings"),
    path("probes/", probe.probes, name="probes"),
    path("runs/new/probe", probe.probe_launch, name="probe_launch"),
    path("probes/<int:probe_id>/", probe.probe, name="probe"),
    path("probes/<int:probe_id>/progress", probe.probe_progress, name="probe_progress"),
    path("probes/<int:probe_id>/stop", probe.probe_stop, name="probe_stop"),
]
