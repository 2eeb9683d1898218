from __future__ import annotations

from django.urls import path

from dashboard.training import model_views, views

urlpatterns = [
    path("workers/", views.workers, name="workers"),
    path("workers/<int:worker_id>/drain", views.worker_drain, name="worker_drain"),
    path(
        "workers/<int:worker_id>/undrain", views.worker_undrain, name="worker_undrain"
    ),
    path("models/", model_views.models, name="models"),
    path(
        "models/<int:model_id>/unpublish",
        model_views.model_unpublish,
        name="model_unpublish",
    ),
]
