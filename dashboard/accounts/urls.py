from __future__ import annotations

from django.urls import path

from dashboard.accounts.views import account, invitations, members, sign_in, team

urlpatterns = [
    path("", sign_in.home, name="home"),
    path("help/", sign_in.show_help, name="help"),
    path("sign-in/", sign_in.sign_in, name="sign_in"),
    path("sign-in/<str:token>/", sign_in.sign_in_link, name="sign_in_link"),
    path("sign-out/", sign_in.sign_out, name="sign_out"),
    path("account/", account.account, name="account"),
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
