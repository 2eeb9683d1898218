from __future__ import annotations

from django.urls import path

from dashboard.upkeep.views import person, storage

personal = [
    path("account/data/", person.person_data, name="person_data"),
    path("account/data/download", person.person_download, name="person_download"),
]
urlpatterns = [
    path("settings/storage", storage.team_storage, name="team_storage"),
]
