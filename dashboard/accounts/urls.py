from __future__ import annotations

from django.urls import path

from dashboard.accounts import views

urlpatterns = [
    path("", views.home, name="home"),
    path("help/", views.show_help, name="help"),
    path("sign-in/", views.sign_in, name="sign_in"),
    path("sign-in/<str:token>/", views.sign_in_link, name="sign_in_link"),
    path("sign-out/", views.sign_out, name="sign_out"),
    path("<slug:team>/settings", views.team_settings, name="team_settings"),
]
