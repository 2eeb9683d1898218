"""Who gets which answer at every address: a new route without a row fails here."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from dashboard.accounts.members import invite
from dashboard.alerts.models import Channel, Delivery
from dashboard.datasets.generators import Task
from dashboard.datasets.imports import request_stop, start_job, store_upload
from dashboard.datasets.mapping import Mapping
from dashboard.runs.models import SavedView, TeamPreset
from dashboard.transfers.models import RunImport
from tests.dashboard.alerts.factories import make_alert, make_rule
from tests.dashboard.analysis.probes.factories import make_probe, make_version
from tests.dashboard.analysis.questions.factories import ask
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.analysis.rescoring.factories import start
from tests.dashboard.api.asking import make_token, token_of
from tests.dashboard.completions.factories import make_checkpoint, make_group, make_run
from tests.dashboard.supervision.machines import make_worker

pytestmark = pytest.mark.django_db
TASK = Task("chain_sum", "Adds numbers.", ())

# Open to everybody: the status of a GET without signing in.
OPEN = {
    "healthz": 200,
    "readyz": 200,
    "metrics": 403,  # requested by a name that is not this machine's
    "help": 200,
    "help_topic": 200,
    "help_about": 200,
    "sign_in": 200,
    "sign_in_link": 410,  # of a token that does not exist
    "invitation": 410,  # as above
    "account_login": 200,
    "sign_out": 405,
    "account_logout": 405,
    "account_inactive": 200,
    "account_confirm_email": 200,  # says that this token was never given
    "account_reset_password": 200,
    "account_reset_password_done": 200,
    "account_reset_password_from_key": 200,  # as above
    "account_reset_password_from_key_done": 200,
    "provider_go": 405,
    "github_callback": 404,  # not set up
    "google_callback": 404,
    "openid_connect_callback": 404,
    "socialaccount_login_cancelled": 200,
    "socialaccount_login_error": 401,
    "mfa_authenticate": 302,  # to sign in with a password first
    "mfa_login_webauthn": 302,  # as above, but for a script
    "public_report": 404,  # as above
}
# No team in the address: nothing of a team is shown.
PERSONAL = {
    "home",
    "person_data",
    "person_download",
    "account",
    "session_end",
    "sessions_end",
    "provider_remove",
    "account_email",
    "account_reauthenticate",
    "mfa_index",
    "mfa_reauthenticate",
    "mfa_activate_totp",
    "mfa_deactivate_totp",
    "mfa_view_recovery_codes",
    "mfa_generate_recovery_codes",
    "mfa_download_recovery_codes",
    "mfa_list_webauthn",
    "mfa_add_webauthn",
    "mfa_reauthenticate_webauthn",
    "mfa_remove_webauthn",
    "mfa_edit_webauthn",
    "team_new",
}
# Of a team. The status of a viewer's POST: 405 where there is nothing to change, 403
# where a viewer may not, 200 where nothing is stored, or only what is the viewer's.
VIEWERS_POST = {
    "team_settings": 405,
    "team_invitations": 405,
    "team_roles": 405,
    "team_danger": 405,
    "team_storage": 403,  # takes an admin
    "team_compute": 403,  # takes an admin
    "team_transfer": 403,  # takes an owner
    "team_leave": 422,  # any member, with the confirmation
    "team_invite": 403,  # takes an admin, as what follows
    "invitation_revoke": 403,
    "member_role": 403,
    "member_remove": 403,
    "member_deactivate": 403,
    "member_reactivate": 403,
    "datasets": 405,
    "dataset_upload": 403,
    "dataset_uploads": 403,
    "dataset_upload_parts": 403,
    "dataset_map": 403,
    "dataset_choice": 403,
    "dataset_map_prompt": 403,  # starts a process
    "dataset_import": 403,
    "dataset_generate": 403,
    "dataset": 405,
    "dataset_statistics": 403,  # counts tokens
    "dataset_prompt": 403,  # starts a process
    "dataset_environment": 403,  # runs code
    "dataset_environments": 403,
    "dataset_versions": 405,
    "dataset_changes": 405,
    "datasets_trash": 405,
    "dataset_trash": 403,
    "dataset_split": 403,
    "dataset_leaks": 405,
    "dataset_save": 403,
    "dataset_download": 405,
    "rewards": 405,
    "reward_new": 200,  # shows and scores; what it writes is refused by action
    "reward_check": 200,  # says what is wrong with a draft
    "reward_gallery": 405,
    "reward_scores": 200,  # scores what was typed
    "reward_rows": 200,
    "reward": 405,
    "reward_edit": 200,  # as reward_new
    "recipe_findings": 405,
    "probes": 405,
    "probe": 405,
    "probe_progress": 405,
    "probe_launch": 403,
    "probe_stop": 403,
    "run_questions": 403,
    "question": 403,
    "question_check": 403,
    "question_progress": 405,
    "team_judges": 403,
    "team_prices": 403,  # takes an admin
    "team_costs": 405,
    "team_costs_file": 405,
    "reproductions": 405,
    "reproduction_launch": 403,
    "rescorings": 405,
    "rescoring_new": 200,  # shows, counts and estimates; a start is refused
    "rescoring": 405,
    "rescoring_progress": 405,
    "rescoring_stop": 403,
    "rescoring_delete": 403,
    "rescoring_export": 405,
    "run_try": 403,
    "runs": 405,
    "runs_live": 405,
    "runs_suggest": 405,
    "runs_act": 403,
    "runs_view": 405,
    "runs_view_save": 302,  # a view of the viewer's own
    "runs_view_change": 403,  # the team's
    "run_act": 403,
    "run_describe": 403,
    "run_new": 403,
    "run_new_summary": 403,
    "run_new_start": 403,
    "run_new_prompt": 403,  # starts a process
    "run_new_sets": 403,
    "run_new_recipe": 403,
    "run_new_model": 403,
    "run_new_rows": 403,
    "run_new_toml": 403,
    "run_new_from_toml": 403,
    "run_new_plan": 403,
    "preset_save": 403,
    "preset_change": 403,
    "compute": 405,
    "search": 405,
    "shell_status": 405,
    "notifications": 405,
    "run_hold": 403,
    "run_release": 403,
    "run_priority": 403,
    "run": 405,
    "run_stop": 403,
    "run_cancel": 403,
    "run_change": 403,
    "run_lineage": 405,
    "run_cost": 405,
    "run_pause": 403,
    "run_resume": 403,
    "run_metrics": 405,
    "run_headline": 405,
    "run_samples": 405,
    "chart_settings": 200,  # the viewer's own
    "metric_pin": 403,
    "run_stream": 405,
    "run_curves": 405,
    "run_config_file": 405,
    "run_best_by": 403,
    "checkpoint_pin": 403,
    "checkpoint_unpin": 403,
    "checkpoint_delete": 403,
    "checkpoint_publish": 403,
    "checkpoint_download": 405,
    "run_checkpoints": 405,
    "run_config": 405,
    "groups": 405,
    "group": 405,
    "group_marks": 403,
    "run_comments": 403,
    "report_comments": 403,
    "mentions": 405,
    "run_annotations": 405,
    "run_export": 405,
    "run_imports": 403,
    "run_import": 403,
    "run_import_files": 403,
    "run_import_parts": 403,
    "run_export_file": 405,
    "group_tokens": 405,
    "completions": 405,
    "run_prompts": 403,
    "run_prompt": 405,
    "run_curriculum": 405,
    "prompts_of_runs": 405,
    "run_reward_log": 405,
    "run_signals": 405,
    "run_logs": 405,
    "run_log_part": 405,
    "run_log_line": 405,
    "run_log_search": 405,
    "run_log_download": 405,
    "run_system_samples": 405,
    "run_ranks": 405,
    "alerts": 405,
    "alert": 405,
    "alert_acknowledge": 403,
    "alert_rules": 403,
    "alert_rule": 403,
    "alert_rule_switch": 403,
    "alert_rule_mute": 403,
    "alert_rule_delete": 403,
    "alert_delivery": 403,
    "alert_channel_test": 403,
    "alert_channel_switch": 403,
    "alert_channel_secret": 403,
    "alert_channel_delete": 403,
    "alert_channel_events": 403,
    "alert_delivery_again": 403,
    "run_alerts_live": 405,
    "run_alerts_mute": 403,
    "worker_drain": 403,
    "worker_undrain": 403,
    "models": 405,
    "model_unpublish": 403,
    "reports": 405,
    "report_new": 403,
    "report_preview": 403,
    "report_insert": 405,
    "report": 405,
    "report_edit": 403,
    "report_history": 405,
    "report_restore": 403,
    "report_block": 405,
    "report_pin": 403,
    "report_share": 403,
    "report_delete": 403,
    "report_export": 405,
    "compare": 405,
    "compare_charts": 405,
    "compare_figure": 405,
    "compare_prompt": 405,
    "compare_questions": 403,
    "sweep": 405,
    "run_health": 405,
    "run_health_examples": 405,
    "run_mismatch": 405,
    "audit_log": 405,
    "audit_log_file": 405,
    "tokens": 422,  # the viewer's own, and this one has no name
    "token_revoke": 302,  # the viewer's own
    "docs": 405,
}
# A viewer's GET is answered with 200, but for these.
VIEWERS_GET = {
    "team_invitations": 403,  # takes an admin
    "runs_view": 302,  # to the list
    "run_new": 403,  # a form that a viewer could not send
    "run_new_model": 403,  # as above
    "run_change": 403,  # what a viewer could not send
    "alert_rule": 403,  # as above
    "report_new": 403,  # as above
    "report_edit": 403,
    "run_curves": 400,  # without ?metrics=
    "group_tokens": 404,  # the group's were not kept
    "run_health_examples": 404,  # the run has too few points
    "run_log_part": 404,  # nothing was logged
    "run_log_line": 404,
    "run_log_search": 404,
    "run_log_download": 404,
    "checkpoint_download": 302,  # to the tab that says that the files are not there
    "dataset_choice": 302,  # to the file's columns, as nothing is left to choose
    "audit_log": 403,  # takes an admin
    "audit_log_file": 403,
    "dataset_download": 302,  # to the page that says that the rows are not there
}
POST_ONLY = {
    "team_transfer",
    "team_leave",
    "team_invite",
    "invitation_revoke",
    "member_role",
    "member_remove",
    "member_deactivate",
    "member_reactivate",
    "chart_settings",
    "metric_pin",
    "alert_acknowledge",
    "alert_rule_switch",
    "alert_rule_mute",
    "alert_rule_delete",
    "alert_channel_test",
    "alert_channel_switch",
    "alert_channel_secret",
    "alert_channel_delete",
    "alert_channel_events",
    "alert_delivery_again",
    "run_alerts_mute",
    "dataset_trash",
    "dataset_uploads",
    "run_import_files",
    "dataset_map_prompt",
    "group_marks",
    "run_comments",
    "report_comments",
    "runs_act",
    "runs_view_save",
    "runs_view_change",
    "run_act",
    "run_describe",
    "run_stop",
    "run_cancel",
    "run_pause",
    "run_resume",
    "run_best_by",
    "checkpoint_pin",
    "checkpoint_unpin",
    "checkpoint_delete",
    "checkpoint_publish",
    "model_unpublish",
    "run_new_start",
    "run_new_prompt",
    "run_new_summary",
    "run_new_sets",
    "run_new_recipe",
    "run_new_rows",
    "run_new_toml",
    "run_new_from_toml",
    "run_new_plan",
    "preset_save",
    "preset_change",
    "run_hold",
    "run_release",
    "run_priority",
    "reward_check",
    "reward_scores",
    "reward_rows",
    "probe_launch",
    "reproduction_launch",
    "probe_stop",
    "rescoring_stop",
    "rescoring_delete",
    "report_preview",
    "report_restore",
    "report_pin",
    "report_share",
    "report_delete",
    "worker_drain",
    "worker_undrain",
    "token_revoke",
}
# Of the whole server: for operators, and admins of its only team.
SHARED = {"worker_drain", "worker_undrain"}


def _walk(patterns: list[Any]) -> Iterator[URLPattern]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver) and pattern.namespace == "admin":
            continue  # operations/test_operators_pages.py
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns)
        else:
            yield pattern


def routes() -> list[URLPattern]:
    """Those of pages; api/test_every_operation_is_guarded.py has the others."""
    found = _walk(get_resolver().url_patterns)
    return [route for route in found if not str(route.name).startswith("api_")]


@pytest.fixture
def addresses(team, alice, bob, monkeypatch) -> dict[str, str]:
    """Every route of the team, with the numbers of things that are there."""
    # The real ones take a process that needs seconds to start.
    monkeypatch.setattr("dashboard.pages.dataset_making.list_tasks", lambda: (TASK,))
    run = make_run(team)
    make_group(run, step=1, prompt_index=0)
    file = SimpleUploadedFile("rows.jsonl", b'{"prompt": "1+1="}\n')
    upload = store_upload(team=team, user=alice, file=file, dataset=None)
    job, _ = start_job(
        upload=upload, mapping=Mapping(prompt="prompt"), name="Rows", user=alice
    )
    request_stop(job)
    probe = make_probe(team, make_version(team))
    checkpoint = make_checkpoint(run)
    model = team.published_models.create(
        name="First", run=run, run_name=run.name, step=1, sha256="ab" * 32, num_bytes=1
    )
    preset = TeamPreset.objects.create(team=team, name="Ours", config=run.config)
    rule = make_rule(team)
    channel = Channel.objects.create(team=team, kind="email", address="a@b.org")
    run_import = RunImport.objects.create(team=team)
    import_file = run_import.files.create(
        filename="1.jsonl", stored_name="1", num_bytes=1
    )
    membership = team.memberships.get(user=alice)
    known = {
        "team": team.slug,
        "member_id": membership.pk,
        "invitation_id": invite(by=membership, role="viewer")[0].pk,
        "run_id": run.pk,
        "dataset_id": run.dataset_version.dataset_id,
        "recipe_id": run.recipe_version.recipe_id,
        "upload_id": upload.pk,
        "job_id": job.pk,
        "probe_id": probe.pk,
        "worker_id": make_worker().pk,
        "name": checkpoint.name,
        "pk": preset.pk,
        "model_id": model.pk,
        "alert_id": make_alert(run, rule).pk,
        "rule_id": rule.pk,
        "channel_id": channel.pk,
        "delivery_id": Delivery.objects.create(
            channel=channel, event="test", not_before=timezone.now()
        ).pk,
        "report_id": make_report(team, alice, "::table runs=1").pk,
        "index": 0,
        "file_kind": "html",
        "step": 1,
        "prompt": 0,
        "tab": "config",
        "suffix": "toml",
        "chart": "map",
        "signal": "length",
        "export": "annotations",
        "question_id": ask(run).pk,
        "rescoring_id": start(run).pk,
        "file_format": "jsonl",
        "code": SavedView.objects.create(
            team=team, owner=alice, name="Ours", is_shared=True
        ).code,
        "import_id": run_import.pk,
        "file_id": import_file.pk,
        "file": "metrics.csv",
        "topic": "launch",
        "term": "reward/mean",
        "token": "never-given",
        "uidb36": "1",
        "provider": "oidc",
        "provider_id": "oidc",
        "key": "never-given",
        "token_id": token_of(make_token(bob)).pk,
    }
    found = {}
    for route in routes():
        ((_, names),), *_ = get_resolver().reverse_dict.getlist(route.name)[0]
        kwargs = {name: known[name] for name in names}
        found[str(route.name)] = reverse(str(route.name), kwargs=kwargs)
    return found


def test_every_route_has_a_row_and_every_row_a_route():
    names = [route.name for route in routes()]

    assert sorted(map(str, names)) == sorted({*OPEN, *PERSONAL, *VIEWERS_POST})


def test_pages_require_sign_in(addresses):
    client = Client()

    assert {name: _ask(client, "get", addresses[name]) for name in OPEN} == OPEN
    for name in [*PERSONAL, *VIEWERS_POST]:
        for method in ("get", "post"):
            response = getattr(client, method)(addresses[name])

            assert response.status_code == 302, (method, name)
            assert response.headers["Location"].startswith("/sign-in/?next="), name


def test_non_members_find_nothing(addresses, charlie_client):
    for method in ("get", "post"):
        found = {n: _ask(charlie_client, method, addresses[n]) for n in VIEWERS_POST}

        # Some first say that the method is not allowed, which reveals nothing else.
        no_such_method = {n for n in found if not _takes(method, n)}
        assert {n for n, status in found.items() if status == 405} == no_such_method
        assert {found[n] for n in found if n not in no_such_method} <= {404}, found

    # Nor through a team of their own.
    numbered = [
        (name, address.replace("/alpha/", "/other/", 1))
        for name, address in addresses.items()
        if name in VIEWERS_POST and re.search(r"/(\d+|[0-9a-f-]{36})(/|$)", address)
    ]
    for method in ("get", "post"):
        found = {n: _ask(charlie_client, method, a) for n, a in numbered}
        found = {n: status for n, status in found.items() if _takes(method, n)}
        expected = dict.fromkeys(found, 404) | dict.fromkeys(SHARED & found.keys(), 403)
        if method == "post":
            expected["dataset_upload_parts"] = (
                422  # says first that ?offset= is missing
            )
        assert found == expected, method
    assert len(numbered) > 100


def test_a_viewer_looks_at_everything_and_changes_nothing(addresses, bob_client):
    found = {n: _ask(bob_client, "get", addresses[n]) for n in VIEWERS_POST}

    expected = dict.fromkeys(found, 200) | dict.fromkeys(POST_ONLY, 405)
    assert found == expected | VIEWERS_GET
    found = {n: _ask(bob_client, "post", addresses[n]) for n in VIEWERS_POST}
    assert found == VIEWERS_POST
    for method in ("put", "patch", "delete"):
        found = {n: _ask(bob_client, method, addresses[n]) for n in VIEWERS_POST}
        assert found == dict.fromkeys(found, 405), method


def test_form_addresses_link_to_their_page(addresses, alice_client):
    pages = set()
    for name in [*POST_ONLY, "sign_out"]:
        refused = alice_client.get(addresses[name], headers={"accept": "text/html"})

        assert (refused.status_code, refused["Allow"]) == (405, "POST"), name
        pages.add(refused.context["page"])
    for page in pages:
        assert alice_client.get(page, follow=True).status_code == 200, page


def test_no_form_of_another_site_is_taken(addresses, alice):
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    headers = {"origin": "https://evil.example"}

    found = {n: client.post(addresses[n], headers=headers) for n in addresses}

    assert {n: answer.status_code for n, answer in found.items()} == dict.fromkeys(
        found, 403
    )


def _ask(client: Client, method: str, address: str) -> int:
    status: int = getattr(client, method)(address).status_code
    return status


def _takes(method: str, name: str) -> bool:
    if method == "get":
        return name not in POST_ONLY
    return method == "post" and VIEWERS_POST[name] != 405
