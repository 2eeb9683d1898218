from __future__ import annotations

from allauth.account import views as emails
from allauth.socialaccount import views as elsewhere
from allauth.socialaccount.providers.github import views as github
from allauth.socialaccount.providers.google import views as google
from allauth.socialaccount.providers.openid_connect import views as openid_connect
from django.contrib.auth.decorators import login_not_required
from django.urls import URLPattern, URLResolver, include, path, re_path

from dashboard.accounts.adapters import only_where_set_up
from dashboard.accounts.views import (
    account,
    invitations,
    members,
    providers,
    sign_in,
    team,
)

# What of django-allauth is used, under its own names, by which its pages find each
# other. There is no page to sign up: that is behind an invitation.
_of_allauth: list[URLPattern | URLResolver] = [
    path("sign-in/", sign_in.sign_in, name="account_login"),
    path("sign-out/", sign_in.sign_out, name="account_logout"),
    path("account/inactive/", emails.account_inactive, name="account_inactive"),
    path("account/email/", emails.email, name="account_email"),
    path(
        "account/confirm-email/<str:key>/",
        emails.confirm_email,
        name="account_confirm_email",
    ),
    path(
        "account/reauthenticate/", emails.reauthenticate, name="account_reauthenticate"
    ),
    path(
        "account/password/reset/",
        emails.password_reset,
        name="account_reset_password",
    ),
    path(
        "account/password/reset/done/",
        emails.password_reset_done,
        name="account_reset_password_done",
    ),
    re_path(
        r"^account/password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        emails.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    path(
        "account/password/reset/key/done/",
        emails.password_reset_from_key_done,
        name="account_reset_password_from_key_done",
    ),
    path("account/factors/", include("allauth.mfa.urls")),
    path(
        "account/providers/cancelled",
        elsewhere.login_cancelled,
        name="socialaccount_login_cancelled",
    ),
    path(
        "account/providers/error",
        login_not_required(elsewhere.login_error),
        name="socialaccount_login_error",
    ),
    path(
        "account/providers/github/back",
        only_where_set_up("github", github.oauth2_callback),
        name="github_callback",
    ),
    path(
        "account/providers/google/back",
        only_where_set_up("google", google.oauth2_callback),
        name="google_callback",
    ),
    path(
        "account/providers/<str:provider_id>/back",
        only_where_set_up("oidc", openid_connect.callback),
        name="openid_connect_callback",
    ),
]

urlpatterns = [
    path("", sign_in.home, name="home"),
    path("sign-in/", sign_in.sign_in, name="sign_in"),
    path("sign-in/<str:token>/", sign_in.sign_in_link, name="sign_in_link"),
    path("sign-out/", sign_in.sign_out, name="sign_out"),
    path("account/", account.account, name="account"),
    path("account/sessions/<int:pk>/end", account.session_end, name="session_end"),
    path("account/sessions/end", account.sessions_end, name="sessions_end"),
    path(
        "account/providers/<str:provider>/go", providers.provider_go, name="provider_go"
    ),
    path(
        "account/providers/<int:pk>/remove",
        providers.provider_remove,
        name="provider_remove",
    ),
    *_of_allauth,
    path("teams/new", team.team_new, name="team_new"),
    path("invitation/<str:token>/", invitations.invitation, name="invitation"),
    path("<slug:team>/settings", team.team_settings, name="team_settings"),
    path("<slug:team>/settings/transfer", team.team_transfer, name="team_transfer"),
    path("<slug:team>/settings/leave", team.team_leave, name="team_leave"),
    path("<slug:team>/settings/invite", invitations.team_invite, name="team_invite"),
    path(
        "<slug:team>/settings/invitations/<int:invitation_id>/revoke",
        invitations.invitation_revoke,
        name="invitation_revoke",
    ),
    path(
        "<slug:team>/settings/members/<int:member_id>/role",
        members.member_role,
        name="member_role",
    ),
    path(
        "<slug:team>/settings/members/<int:member_id>/remove",
        members.member_remove,
        name="member_remove",
    ),
    path(
        "<slug:team>/settings/members/<int:member_id>/deactivate",
        members.member_deactivate,
        name="member_deactivate",
    ),
    path(
        "<slug:team>/settings/members/<int:member_id>/reactivate",
        members.member_reactivate,
        name="member_reactivate",
    ),
]
