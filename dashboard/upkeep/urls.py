from __future__ import annotations

from django.urls import path

from dashboard.upkeep import views

urlpatterns = [
    path("settings/storage", views.team_storage, name="team_storage"),
]
