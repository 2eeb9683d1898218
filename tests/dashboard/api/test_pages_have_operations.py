"""What pages can do, programs can do: a new page without a row here fails."""

from __future__ import annotations

from tests.dashboard.api.test_every_operation_is_guarded import SCOPES
from tests.dashboard.test_every_route_is_guarded import POST_ONLY, VIEWERS_POST, routes

# By a page's route: the operations that do what it does.
OPERATIONS: dict[str, str] = {
    "alert": "alert",
    "alert_acknowledge": "acknowledge_alert",
    "alerts": "alerts",
    "chat_answers": "chat",
    "chat_stop": "stop_chat",
    "chat_stream": "chat",
    "checkpoint_delete": "delete_checkpoint",
    "checkpoint_download": "checkpoint_model",
    "checkpoint_pin": "pin_checkpoint",
    "checkpoint_publish": "publish_checkpoint",
    "checkpoint_unpin": "unpin_checkpoint",
    "compare": "compare compare_curves compare_metrics",
    "compare_figure": "compare_curves",
    "compare_prompt": "compare_prompts compare_prompt votes",
    "compare_vote": "ballot vote",
    "completions": "completions completion_facets",
    "dataset": "dataset dataset_versions dataset_version dataset_rows",
    "dataset_import": "dataset_import",
    "dataset_upload": "start_import",
    "datasets": "datasets",
    "group": "group",
    "group_marks": "mark",
    "group_tokens": "group_tokens",
    "groups": "groups",
    "model_unpublish": "unpublish_model",
    "models": "models model",
    "probe": "probe probe_groups",
    "probe_launch": "start_probe",
    "probe_progress": "probe",
    "probe_stop": "stop_probe",
    "probes": "probes",
    "prompts_of_runs": "runs",
    "recipe_findings": "check_recipe",
    "report": "report report_blocks",
    "report_block": "report_blocks",
    "report_delete": "delete_report",
    "report_edit": "save_report",
    "report_export": "report_file",
    "report_history": "report_versions report_version",
    "report_new": "create_report",
    "report_pin": "pin_block",
    "report_preview": "preview_report",
    "report_restore": "restore_report",
    "report_share": "share_report revoke_report",
    "reports": "reports",
    "rescoring": "rescoring",
    "rescoring_delete": "delete_rescoring",
    "rescoring_export": "rescoring_file",
    "rescoring_new": "estimate_rescoring rescore",
    "rescoring_progress": "rescoring",
    "rescoring_stop": "stop_rescoring",
    "rescorings": "rescorings",
    "reward": "recipe recipe_versions",
    "reward_check": "check_recipe",
    "reward_edit": "create_recipe_version",
    "reward_new": "create_recipe",
    "reward_try": "try_recipe",
    "rewards": "recipes",
    "run": "run",
    "run_act": "act_on_runs delete_run",
    "run_alerts": "alerts",
    "run_alerts_live": "alerts",
    "run_annotations": "run_marks",
    "run_audit": "run_audit",
    "run_audit_examples": "audit_examples",
    "run_best_by": "choose_best",
    "run_cancel": "cancel",
    "run_change": "run_changes extend change_settings",
    "run_chat": "chats ask_checkpoint",
    "run_config_file": "run_config_file",
    "run_curves": "metrics",
    "run_describe": "describe",
    "run_export": "run_file",
    "run_export_file": "run_file",
    "run_import": "run_import make_run_import read_run_import "
    "stop_run_import discard_run_import",
    "run_import_files": "begin_run_file",
    "run_import_parts": "run_file_sent send_run_part",
    "run_imports": "run_imports begin_run_import send_run_file",
    "run_lineage": "run_lineage",
    "run_log_download": "run_log_file",
    "run_log_line": "run_log_line",
    "run_log_part": "run_log",
    "run_log_search": "run_log_search",
    "run_logs": "run_log",
    "run_metrics": "metrics evaluations",
    "run_new": "launch launch_sweep presets preset",
    "run_new_fit": "check_launch",
    "run_new_from_toml": "create_recipe launch",
    "run_new_plan": "plan_sweep",
    "run_new_recipe": "preset create_recipe",
    "run_new_prompt": "preview_prompt",
    "run_new_summary": "check_launch",
    "run_new_toml": "check_launch",
    "run_pause": "pause_run",
    "run_prompt": "run_prompt prompt_completions",
    "run_prompts": "run_prompts dataset_of_prompts",
    "run_resume": "resume",
    "run_reward_log": "reward_log",
    "run_signals": "run_signals",
    "run_stop": "stop_run",
    "run_stream": "run metrics groups",
    "run_system": "run_system",
    "run_system_samples": "run_system",
    "run_tab": "run checkpoints",
    "runs": "runs",
    "runs_act": "act_on_runs",
    "runs_live": "runs",
    "sweep": "weigh_sweep",
    "token_revoke": "token",
    "tokens": "tokens",
    "workbench": "try_recipe start_probe create_recipe create_recipe_version",
    "workbench_rows": "check_recipe",
    "workbench_scores": "try_recipe",
    "worker_drain": "drain_worker",
    "worker_undrain": "undrain_worker",
    "workers": "workers",
}
SCREEN = "arranges what a browser shows, and tells nothing that is not told elsewhere"
PERSON = "a person's own account, which takes a password and a browser"
SIGN_IN = "signing in, which a token replaces"
# By a page's route: why there is no operation.
NONE: dict[str, str] = {
    "docs": "describes the API; /api/v1/openapi.json does so for programs",
    "healthz": "answers programs as it is, without a token",
    "readyz": "answers programs as it is, without a token",
    "help": SCREEN,
    "chart_settings": SCREEN,
    "report_insert": "writes a block's line for who does not type it; a program does",
    "home": "leads to the runs of a team, which a token names",
    "public_report": "answers everybody as it is, without a token",
    "run_new_sets": SCREEN,
    "runs_suggest": SCREEN,
} | dict.fromkeys(
    (
        *("account", "account_email", "account_reauthenticate", "provider_remove"),
        *("session_end", "sessions_end", "person_data", "person_download"),
        *("mfa_index", "mfa_reauthenticate", "mfa_activate_totp"),
        *("mfa_deactivate_totp", "mfa_view_recovery_codes"),
        *("mfa_generate_recovery_codes", "mfa_download_recovery_codes"),
        *("mfa_list_webauthn", "mfa_add_webauthn", "mfa_reauthenticate_webauthn"),
        *("mfa_remove_webauthn", "mfa_edit_webauthn"),
    ),
    PERSON,
)
NONE |= dict.fromkeys(
    (
        *("sign_in", "sign_in_link", "sign_out", "account_login", "account_logout"),
        *("account_inactive", "account_confirm_email", "account_reset_password"),
        *("account_reset_password_done", "account_reset_password_from_key"),
        *("account_reset_password_from_key_done", "provider_go", "github_callback"),
        *("google_callback", "openid_connect_callback"),
        *("socialaccount_login_cancelled", "socialaccount_login_error"),
        *("mfa_authenticate", "mfa_login_webauthn"),
    ),
    SIGN_IN,
)
PART_B_PENDING = {
    *("alert_channel_delete", "alert_channel_events", "alert_channel_secret"),
    *("alert_channel_switch", "alert_channel_test", "alert_delivery"),
    *("alert_delivery_again", "alert_rule", "alert_rule_delete", "alert_rule_mute"),
    *("alert_rule_switch", "alert_rules", "audit_log", "audit_log_file"),
    *("dataset_changes", "dataset_choice", "dataset_download", "dataset_generate"),
    *("dataset_leaks", "dataset_map", "dataset_map_prompt", "dataset_prompt"),
    *("dataset_save", "dataset_split", "dataset_statistics", "dataset_trash"),
    *("dataset_upload_parts", "dataset_uploads", "datasets_trash", "invitation"),
    *("invitation_revoke", "member_deactivate", "member_reactivate"),
    *("member_remove", "member_role", "mentions", "preset_change", "preset_save"),
    *("queue", "run_alerts_mute", "run_hold", "run_move", "run_priority"),
    *("run_release", "runs_view", "runs_view_change", "runs_view_save"),
    *("team_invite", "team_leave", "team_new", "team_settings", "team_storage"),
    *("team_transfer",),
}


def test_every_page_has_one_row_and_every_row_a_page() -> None:
    rows = [*OPERATIONS, *NONE, *PART_B_PENDING]

    assert sorted(rows) == sorted({str(route.name) for route in routes()})


def test_every_named_operation_is_there() -> None:
    for route, names in OPERATIONS.items():
        assert names, route
        assert set(names.split()) <= set(SCOPES), route


def test_what_changes_something_is_done_by_what_may_change_it() -> None:
    """A viewer's POST is refused where something of the team changes."""
    for route, names in OPERATIONS.items():
        if VIEWERS_POST.get(route) == 403 and route in POST_ONLY:
            scopes = {SCOPES[name] for name in names.split()}
            assert scopes & {"write", "admin"}, route


def test_every_reason_is_a_sentence() -> None:
    assert {route for route, reason in NONE.items() if len(reason.split()) < 3} == set()


def test_no_page_waits_for_its_operation() -> None:
    assert sorted(PART_B_PENDING) == []
