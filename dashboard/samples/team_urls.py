"""Included at /<team>/."""

from __future__ import annotations

from django.urls import path

from dashboard.samples.views.mentions import mentions

urlpatterns = [path("mentions/", mentions, name="mentions")]
