"""Included at /<team>/rewards/."""

from __future__ import annotations

from django.urls import path

from dashboard.rewards.views.detail import reward
from dashboard.rewards.views.editor import reward_check, reward_edit, reward_new
from dashboard.rewards.views.list import rewards
from dashboard.rewards.views.workbench import reward_try

urlpatterns = [
    path("", rewards, name="rewards"),
    path("new", reward_new, name="reward_new"),
    path("check", reward_check, name="reward_check"),
    path("try", reward_try, name="reward_try"),
    path("<int:recipe_id>/", reward, name="reward"),
    path("<int:recipe_id>/edit", reward_edit, name="reward_edit"),
]
