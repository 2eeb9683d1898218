from __future__ import annotations

from django.urls import path

from dashboard.training import views

urlpatterns = [path("workers/", views.workers, name="workers")]
