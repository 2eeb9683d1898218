"""What each form writes into the audit log: a new route without a row fails here."""

from tests.dashboard.operations.reach import verbs_of
from tests.dashboard.test_every_route_is_guarded import OPEN, VIEWERS_POST, routes

WRITES = {
    "dataset_map": {"dataset.version_created"},
    "dataset_save": {"dataset.version_created"},
    "dataset_environment": {"dataset.version_created"},
    "dataset_environments": {"dataset.version_created"},
    "dataset_split": {"dataset.version_created"},
    "dataset_generate": {"dataset.version_created"},
    "dataset_import": {"import.stop_requested"},
    "dataset_trash": {"dataset.deleted", "dataset.restored", "dataset.trashed"},
    "run_prompts": {"dataset.version_created"},
    "reward_new": {"recipe.version_created", "probe.started", "probe.stop_requested"},
    "reward_edit": {"recipe.version_created", "probe.started", "probe.stop_requested"},
    "probe_launch": {"probe.started"},
    "probe_stop": {"probe.stop_requested"},
    "rescoring_new": {"rescoring.started"},
    "rescoring_stop": {"rescoring.stop_requested"},
    "rescoring_delete": {"rescoring.deleted"},
    "run_questions": {"question.tried"},
    "compare_questions": {"question.tried", "question.started"},
    "reproduction_launch": {"recipe.version_created", "dataset.version_created"},
    "question": {
        *("question.tried", "question.started", "question.stop_requested"),
        *("question.tagged", "question.deleted"),
    },
    "team_judges": {"judge.added", "judge.deleted"},
    "team_prices": {"price.added"},
    "run_try": {"probe.started"},
    "runs_act": {
        *("run.tagged", "run.untagged", "run.locked", "run.unlocked"),
        *("run.archived", "run.unarchived", "run.trashed", "run.restored"),
        "run.stop_requested",
    },
    "runs_view_save": {"view.saved"},
    "runs_view_change": {"view.changed", "view.deleted"},
    "run_act": {"run.deleted", "run.locked", "run.trashed", "run.restored"},
    "run_describe": {"run.described"},
    "run_new": {"run.launched", "sweep.launched"},
    "run_new_recipe": {"recipe.version_created"},
    "run_new_rows": {"recipe.version_created"},
    "run_new_model": {"model.download_started"},
    "run_new_from_toml": {"recipe.version_created"},
    "preset_save": {"preset.saved", "preset.overwritten"},
    "preset_change": {"preset.deleted", "preset.renamed"},
    "run_hold": {"run.held"},
    "run_release": {"run.released"},
    "run_priority": {"run.priority_changed"},
    "run_stop": {"run.stop_requested"},
    "run_cancel": {"run.cancelled"},
    "run_change": {"run.extended", "run.settings_changed"},
    "run_pause": {"run.pause_requested"},
    "run_resume": {"run.resume_requested"},
    "run_best_by": {"run.best_by_changed"},
    "checkpoint_pin": {"checkpoint.pinned"},
    "checkpoint_unpin": {"checkpoint.unpinned"},
    "checkpoint_delete": {"checkpoint.deleted"},
    "checkpoint_publish": {"model.published"},
    "model_unpublish": {"model.unpublished"},
    "group_marks": {
        *("group.tagged", "group.untagged"),
        *("group.commented", "group.comment_deleted"),
    },
    "run_comments": {"run.commented", "run.comment_deleted"},
    "report_comments": {"report.commented", "report.comment_deleted"},
    "run_imports": {"run.imported"},
    "run_import": {"run.imported"},
    "alert_acknowledge": {"alert.acknowledged"},
    "alert_rules": {"alert_rule.created"},
    "alert_rule": {"alert_rule.changed"},
    "alert_rule_switch": {"alert_rule.switched_on", "alert_rule.switched_off"},
    "alert_rule_mute": {"alert_rule.muted", "alert_rule.unmuted"},
    "alert_rule_delete": {"alert_rule.deleted"},
    "alert_delivery": {"alert_channel.added"},
    "alert_channel_test": {"alert_channel.tested"},
    "alert_channel_switch": {"alert_channel.switched_on", "alert_channel.switched_off"},
    "alert_channel_secret": {"alert_channel.secret_changed"},
    "alert_channel_events": {"alert_channel.events_chosen"},
    "alert_delivery_again": {"alert_channel.sent_again"},
    "alert_channel_delete": {"alert_channel.deleted"},
    "run_alerts_mute": {"run.alerts_muted", "run.alerts_unmuted"},
    "worker_drain": {"worker.drained"},
    "worker_undrain": {"worker.undrained"},
    "report_new": {"report.created"},
    "report_edit": {"report.saved"},
    "report_restore": {"report.saved"},
    "report_pin": {"report.saved"},
    "report_share": {"report.published", "report.revoked"},
    "report_delete": {"report.deleted"},
    "account": {"person.password_changed"},
    "person_data": {"team.member_erased"},
    "team_new": {"team.created"},
    "team_invite": {"invitation.created"},
    "invitation_revoke": {"invitation.revoked"},
    "team_leave": {"member.left"},
    "team_transfer": {"team.transferred"},
    "team_storage": {"team.retention_changed"},
    "team_compute": {"team.cluster_changed"},
    "member_role": {"member.role_changed"},
    "member_remove": {"member.removed"},
    "member_deactivate": {"person.deactivated"},
    "member_reactivate": {"person.reactivated"},
    "tokens": {"token.created"},
    "token_revoke": {"token.revoked"},
}
PENDING = "a file on its way, which is nothing of the team's until it is imported"
SHOWN = "stores nothing: shows what was typed"
OWN = "the person's own, which no one else sees"
ENTRANCE = "how the person signs in, of no team"
EXEMPT = {
    "sign_in": "of no team",
    "sign_in_link": "of no team",
    "sign_out": "of no team",
    "account_email": ENTRANCE,
    "account_reauthenticate": ENTRANCE,
    "mfa_index": ENTRANCE,
    "mfa_reauthenticate": ENTRANCE,
    "mfa_activate_totp": ENTRANCE,
    "mfa_deactivate_totp": ENTRANCE,
    "mfa_view_recovery_codes": ENTRANCE,
    "mfa_generate_recovery_codes": ENTRANCE,
    "mfa_download_recovery_codes": ENTRANCE,
    "mfa_list_webauthn": ENTRANCE,
    "mfa_add_webauthn": ENTRANCE,
    "mfa_reauthenticate_webauthn": ENTRANCE,
    "mfa_remove_webauthn": ENTRANCE,
    "mfa_edit_webauthn": ENTRANCE,
    "provider_remove": ENTRANCE,
    "session_end": ENTRANCE,
    "sessions_end": ENTRANCE,
    "person_download": "a copy of one's own data",
    "chart_settings": OWN,
    "question_check": "a label of a completion, which the question shows",
    "metric_pin": "the order of charts, which changes no data",
    "dataset_upload": PENDING,
    "dataset_uploads": PENDING,
    "dataset_upload_parts": PENDING,
    "dataset_choice": PENDING,
    "run_import_files": PENDING,
    "run_import_parts": PENDING,
    "dataset_map_prompt": SHOWN,
    "dataset_prompt": SHOWN,
    "dataset_statistics": "counts a model's tokens, and changes nothing",
    "reward_check": SHOWN,
    "reward_scores": SHOWN,
    "reward_rows": SHOWN,
    "run_new_summary": SHOWN,
    "run_new_start": SHOWN,
    "run_new_prompt": SHOWN,
    "run_new_sets": SHOWN,
    "run_new_toml": SHOWN,
    "run_new_plan": SHOWN,
    "report_preview": SHOWN,
}
BY_NAME = {str(route.name): route for route in routes()}


def takes_forms(name: str) -> bool:
    if name in VIEWERS_POST:
        return VIEWERS_POST[name] != 405
    return name in EXEMPT or name not in {*OPEN, "home"}


def test_every_route_that_takes_a_form_has_a_row_here():
    named = {name for name in BY_NAME if takes_forms(name)}

    assert named == {*WRITES, *EXEMPT}
    assert not WRITES.keys() & EXEMPT.keys()


def test_its_view_leads_to_where_that_is_written():
    found = {name: verbs_of(BY_NAME[name].callback) for name in WRITES}
    missing = {name: WRITES[name] - found[name] for name in WRITES}

    assert {name: verbs for name, verbs in missing.items() if verbs} == {}


def test_a_view_that_writes_nothing_is_found_out():
    assert verbs_of(BY_NAME["runs"].callback) == set()
