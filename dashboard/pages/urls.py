"""The addresses of all pages."""

from __future__ import annotations

from allauth.account import views as emails
from allauth.socialaccount import views as elsewhere
from allauth.socialaccount.providers.github import views as github
from allauth.socialaccount.providers.google import views as google
from allauth.socialaccount.providers.openid_connect import views as openid_connect
from django.contrib.auth.decorators import login_not_required
from django.urls import URLPattern, URLResolver, include, path, re_path

from dashboard.accounts.adapters import require_provider
from dashboard.api import pages
from dashboard.pages import (
    account,
    alerts,
    checkpoints,
    comments,
    compare,
    completions,
    compute,
    costs,
    dataset_analysis,
    dataset_making,
    dataset_mapping,
    dataset_uploads,
    datasets,
    exchange,
    groups,
    health,
    launch,
    mismatch,
    probes,
    prompts,
    questions,
    recipes,
    reports,
    reproductions,
    rescoring,
    reward_editor,
    run_actions,
    run_charts,
    run_detail,
    run_list,
    shell,
    team,
    team_admin,
)
from dashboard.pages import help as help_pages

# What of django-allauth is used, under its own names, by which its pages find each
# other. There is no page to sign up: that is behind an invitation.
_of_allauth: list[URLPattern | URLResolver] = [
    path("sign-in/", account.sign_in, name="account_login"),
    path("sign-out/", account.sign_out, name="account_logout"),
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
        require_provider("github", github.oauth2_callback),
        name="github_callback",
    ),
    path(
        "account/providers/google/back",
        require_provider("google", google.oauth2_callback),
        name="google_callback",
    ),
    path(
        "account/providers/<str:provider_id>/back",
        require_provider("oidc", openid_connect.callback),
        name="openid_connect_callback",
    ),
]

ACCOUNTS = [
    path("", account.home, name="home"),
    path("sign-in/", account.sign_in, name="sign_in"),
    path("sign-in/<str:token>/", account.sign_in_link, name="sign_in_link"),
    path("sign-out/", account.sign_out, name="sign_out"),
    path("account/", account.account, name="account"),
    path("account/sessions/<int:pk>/end", account.session_end, name="session_end"),
    path("account/sessions/end", account.sessions_end, name="sessions_end"),
    path(
        "account/providers/<str:provider>/go", account.provider_go, name="provider_go"
    ),
    path(
        "account/providers/<int:pk>/remove",
        account.provider_remove,
        name="provider_remove",
    ),
    *_of_allauth,
    path("teams/new", team.team_new, name="team_new"),
    path("invitation/<str:token>/", team.invitation, name="invitation"),
    path("<slug:team>/settings", team.team_settings, name="team_settings"),
    path(
        "<slug:team>/settings/invitations",
        team.team_invitations,
        name="team_invitations",
    ),
    path("<slug:team>/settings/roles", team.team_roles, name="team_roles"),
    path("<slug:team>/settings/danger", team.team_danger, name="team_danger"),
    path("<slug:team>/settings/transfer", team.team_transfer, name="team_transfer"),
    path("<slug:team>/settings/leave", team.team_leave, name="team_leave"),
    path("<slug:team>/settings/invite", team.team_invite, name="team_invite"),
    path(
        "<slug:team>/settings/invitations/<int:invitation_id>/revoke",
        team.invitation_revoke,
        name="invitation_revoke",
    ),
    path(
        "<slug:team>/settings/members/<int:member_id>/role",
        team.member_role,
        name="member_role",
    ),
    path(
        "<slug:team>/settings/members/<int:member_id>/remove",
        team.member_remove,
        name="member_remove",
    ),
    path(
        "<slug:team>/settings/members/<int:member_id>/deactivate",
        team.member_deactivate,
        name="member_deactivate",
    ),
    path(
        "<slug:team>/settings/members/<int:member_id>/reactivate",
        team.member_reactivate,
        name="member_reactivate",
    ),
]


ALERTS = [
    path("alerts/", alerts.alerts, name="alerts"),
    path("alerts/<int:alert_id>/", alerts.alert, name="alert"),
    path(
        "alerts/<int:alert_id>/acknowledge",
        alerts.alert_acknowledge,
        name="alert_acknowledge",
    ),
    path("settings/alert-rules/", alerts.alert_rules, name="alert_rules"),
    path("settings/alert-rules/<int:rule_id>/", alerts.alert_rule, name="alert_rule"),
    path(
        "settings/alert-rules/<int:rule_id>/switch",
        alerts.alert_rule_switch,
        name="alert_rule_switch",
    ),
    path(
        "settings/alert-rules/<int:rule_id>/mute",
        alerts.alert_rule_mute,
        name="alert_rule_mute",
    ),
    path(
        "settings/alert-rules/<int:rule_id>/delete",
        alerts.alert_rule_delete,
        name="alert_rule_delete",
    ),
    path("settings/notifications/", alerts.alert_delivery, name="alert_delivery"),
    path(
        "settings/notifications/<int:channel_id>/test",
        alerts.alert_channel_test,
        name="alert_channel_test",
    ),
    path(
        "settings/notifications/<int:channel_id>/switch",
        alerts.alert_channel_switch,
        name="alert_channel_switch",
    ),
    path(
        "settings/notifications/<int:channel_id>/secret",
        alerts.alert_channel_secret,
        name="alert_channel_secret",
    ),
    path(
        "settings/notifications/<int:channel_id>/events",
        alerts.alert_channel_events,
        name="alert_channel_events",
    ),
    path(
        "settings/notifications/<uuid:delivery_id>/again",
        alerts.alert_delivery_again,
        name="alert_delivery_again",
    ),
    path(
        "settings/notifications/<int:channel_id>/delete",
        alerts.alert_channel_delete,
        name="alert_channel_delete",
    ),
]


TOKENS = [
    path("tokens/", pages.tokens, name="tokens"),
    path("tokens/<int:token_id>/revoke", pages.token_revoke, name="token_revoke"),
    path("api/", pages.docs, name="docs"),
]


AUDIT_LOG = [
    path("", team_admin.audit_log, name="audit_log"),
    path("<slug:file_format>", team_admin.audit_log_file, name="audit_log_file"),
]


DATASETS = [
    path("", datasets.datasets, name="datasets"),
    path("upload", dataset_uploads.dataset_upload, name="dataset_upload"),
    path("uploads", dataset_uploads.dataset_uploads, name="dataset_uploads"),
    path(
        "uploads/<int:upload_id>/parts",
        dataset_uploads.dataset_upload_parts,
        name="dataset_upload_parts",
    ),
    path("uploads/<int:upload_id>", dataset_mapping.dataset_map, name="dataset_map"),
    path(
        "uploads/<int:upload_id>/choice",
        dataset_mapping.dataset_choice,
        name="dataset_choice",
    ),
    path(
        "uploads/<int:upload_id>/prompt",
        dataset_mapping.dataset_map_prompt,
        name="dataset_map_prompt",
    ),
    path("imports/<int:job_id>", dataset_uploads.dataset_import, name="dataset_import"),
    path("generate", dataset_making.dataset_generate, name="dataset_generate"),
    path(
        "environments",
        dataset_making.dataset_environments,
        name="dataset_environments",
    ),
    path(
        "<int:dataset_id>/environment",
        dataset_making.dataset_environment,
        name="dataset_environment",
    ),
    path("<int:dataset_id>/", datasets.dataset, name="dataset"),
    path(
        "<int:dataset_id>/versions", datasets.dataset_versions, name="dataset_versions"
    ),
    path(
        "<int:dataset_id>/changes",
        dataset_analysis.dataset_changes,
        name="dataset_changes",
    ),
    path(
        "<int:dataset_id>/prompt", dataset_making.dataset_prompt, name="dataset_prompt"
    ),
    path(
        "<int:dataset_id>/statistics",
        dataset_analysis.dataset_statistics,
        name="dataset_statistics",
    ),
    path("trash", datasets.datasets_trash, name="datasets_trash"),
    path("<int:dataset_id>/trash", datasets.dataset_trash, name="dataset_trash"),
    path("<int:dataset_id>/split", dataset_making.dataset_split, name="dataset_split"),
    path(
        "<int:dataset_id>/leaks", dataset_analysis.dataset_leaks, name="dataset_leaks"
    ),
    path("<int:dataset_id>/save", dataset_making.dataset_save, name="dataset_save"),
    path(
        "<int:dataset_id>/download", datasets.dataset_download, name="dataset_download"
    ),
]


FILES = (
    "metrics.csv|metrics.jsonl|metrics.parquet|completions.csv|completions.jsonl|"
    "completions.parquet|tensorboard.zip"
).replace(".", r"\.")

EXCHANGE = [
    path("import/", exchange.run_imports, name="run_imports"),
    path("import/<int:import_id>/", exchange.run_import, name="run_import"),
    path(
        "import/<int:import_id>/files",
        exchange.run_import_files,
        name="run_import_files",
    ),
    path(
        "import/<int:import_id>/files/<int:file_id>/parts",
        exchange.run_import_parts,
        name="run_import_parts",
    ),
    path("<int:run_id>/export/", exchange.run_export, name="run_export"),
    re_path(
        rf"^(?P<run_id>\d{{1,18}})/export/(?P<file>{FILES})$",
        exchange.run_export_file,
        name="run_export_file",
    ),
]


HEALTH = [
    path("health/", health.run_health, name="run_health"),
    path("health/mismatch/", mismatch.run_mismatch, name="run_mismatch"),
    path(
        "health/<str:signal>/", health.run_health_examples, name="run_health_examples"
    ),
    path("alerts.json", health.run_alerts_live, name="run_alerts_live"),
    path("alerts/mute", health.run_alerts_mute, name="run_alerts_mute"),
    # As they were before.
]


ANALYSIS = [
    path("compare", compare.compare, name="compare"),
    path("compare/charts.json", compare.compare_charts, name="compare_charts"),
    path("compare/figure.json", compare.compare_figure, name="compare_figure"),
    path("compare/prompt", compare.compare_prompt, name="compare_prompt"),
    path("compare/questions", questions.compare_questions, name="compare_questions"),
    path("sweep", compare.sweep, name="sweep"),
    path("reproductions/", reproductions.reproductions, name="reproductions"),
    path(
        "reproductions/<str:name>/launch",
        reproductions.reproduction_launch,
        name="reproduction_launch",
    ),
]


PROBES = [
    path("runs/<int:run_id>/try/", probes.run_try, name="run_try"),
    path("probes/", probes.probes, name="probes"),
    path("runs/new/probe", probes.probe_launch, name="probe_launch"),
    path("probes/<int:probe_id>/", probes.probe, name="probe"),
    path(
        "probes/<int:probe_id>/progress", probes.probe_progress, name="probe_progress"
    ),
    path("probes/<int:probe_id>/stop", probes.probe_stop, name="probe_stop"),
]


REPORTS = [
    path("", reports.reports, name="reports"),
    path("new", reports.report_new, name="report_new"),
    path("preview", reports.report_preview, name="report_preview"),
    path("insert", reports.report_insert, name="report_insert"),
    path("<int:report_id>/", reports.report, name="report"),
    path("<int:report_id>/edit", reports.report_edit, name="report_edit"),
    path("<int:report_id>/history", reports.report_history, name="report_history"),
    path("<int:report_id>/restore", reports.report_restore, name="report_restore"),
    path(
        "<int:report_id>/blocks/<int:index>", reports.report_block, name="report_block"
    ),
    path("<int:report_id>/comments", comments.report_comments, name="report_comments"),
    path("<int:report_id>/pin", reports.report_pin, name="report_pin"),
    path("<int:report_id>/share", reports.report_share, name="report_share"),
    path("<int:report_id>/delete", reports.report_delete, name="report_delete"),
    path("<int:report_id>/export.html", reports.report_export, name="report_export"),
]


RESCORINGS = [
    path("rescorings/", rescoring.rescorings, name="rescorings"),
    path("rescorings/new", rescoring.rescoring_new, name="rescoring_new"),
    path("rescorings/<int:rescoring_id>/", rescoring.rescoring, name="rescoring"),
    path(
        "rescorings/<int:rescoring_id>/progress",
        rescoring.rescoring_progress,
        name="rescoring_progress",
    ),
    path(
        "rescorings/<int:rescoring_id>/stop",
        rescoring.rescoring_stop,
        name="rescoring_stop",
    ),
    path(
        "rescorings/<int:rescoring_id>/delete",
        rescoring.rescoring_delete,
        name="rescoring_delete",
    ),
    path(
        "rescorings/<int:rescoring_id>/completions.<file_format>",
        rescoring.rescoring_export,
        name="rescoring_export",
    ),
]


RECIPES = [
    path("", recipes.rewards, name="rewards"),
    path("new", reward_editor.reward_new, name="reward_new"),
    path("check", recipes.reward_check, name="reward_check"),
    path("gallery", recipes.reward_gallery, name="reward_gallery"),
    path("scores", reward_editor.reward_scores, name="reward_scores"),
    path("rows", reward_editor.reward_rows, name="reward_rows"),
    path("findings", recipes.recipe_findings, name="recipe_findings"),
    path("<int:recipe_id>/", recipes.reward, name="reward"),
    path("<int:recipe_id>/edit", reward_editor.reward_edit, name="reward_edit"),
]


RUNS: list[URLPattern] = [
    path("", run_list.runs, name="runs"),
    path("charts", run_charts.chart_settings, name="chart_settings"),
    path("pin-metric", run_charts.metric_pin, name="metric_pin"),
    path("live.json", run_list.runs_live, name="runs_live"),
    path("suggest.json", run_list.runs_suggest, name="runs_suggest"),
    path("act", run_actions.runs_act, name="runs_act"),
    path("views/", run_list.runs_view_save, name="runs_view_save"),
    path("views/<slug:code>/", run_list.runs_view, name="runs_view"),
    path(
        "views/<slug:code>/change",
        run_list.runs_view_change,
        name="runs_view_change",
    ),
    path("new", launch.run_new, name="run_new"),
    path("new/summary", launch.run_new_summary, name="run_new_summary"),
    path("new/start", launch.run_new_start, name="run_new_start"),
    path("new/prompt", launch.run_new_prompt, name="run_new_prompt"),
    path("new/sets", launch.run_new_sets, name="run_new_sets"),
    path("new/recipe", launch.run_new_recipe, name="run_new_recipe"),
    path("new/model", launch.run_new_model, name="run_new_model"),
    path("new/rows", launch.run_new_rows, name="run_new_rows"),
    path("new/toml", launch.run_new_toml, name="run_new_toml"),
    path("new/from-toml", launch.run_new_from_toml, name="run_new_from_toml"),
    path("new/plan", launch.run_new_plan, name="run_new_plan"),
    path("new/presets", launch.preset_save, name="preset_save"),
    path("presets/<int:pk>", launch.preset_change, name="preset_change"),
    # One run: its page, tabs, what is asked of it, stream and curves.
    path("<int:run_id>/", run_detail.run, name="run"),
    path("<int:run_id>/headline/", run_detail.headline, name="run_headline"),
    path("<int:run_id>/metrics/", run_charts.metrics, name="run_metrics"),
    path("<int:run_id>/act", run_actions.run_act, name="run_act"),
    path("<int:run_id>/describe", run_actions.run_describe, name="run_describe"),
    path("<int:run_id>/stop", run_actions.run_stop, name="run_stop"),
    path("<int:run_id>/cancel", run_actions.run_cancel, name="run_cancel"),
    path("<int:run_id>/change/", run_actions.run_change, name="run_change"),
    path("<int:run_id>/comments", comments.run_comments, name="run_comments"),
    path("<int:run_id>/cost/", costs.run_cost, name="run_cost"),
    path("<int:run_id>/lineage/", run_detail.lineage, name="run_lineage"),
    path("<int:run_id>/pause", run_actions.run_pause, name="run_pause"),
    path("<int:run_id>/resume", run_actions.run_resume, name="run_resume"),
    path("<int:run_id>/hold", compute.run_hold, name="run_hold"),
    path("<int:run_id>/release", compute.run_release, name="run_release"),
    path("<int:run_id>/priority", compute.run_priority, name="run_priority"),
    path("<int:run_id>/stream.json", run_detail.stream, name="run_stream"),
    path("<int:run_id>/curves.json", run_charts.curves, name="run_curves"),
    path(
        "<int:run_id>/config.<suffix>", run_detail.config_file, name="run_config_file"
    ),
    path(
        "<int:run_id>/checkpoints/best",
        checkpoints.run_best_by,
        name="run_best_by",
    ),
    path(
        "<int:run_id>/checkpoints/<slug:name>/pin",
        checkpoints.checkpoint_pin,
        name="checkpoint_pin",
    ),
    path(
        "<int:run_id>/checkpoints/<slug:name>/unpin",
        checkpoints.checkpoint_unpin,
        name="checkpoint_unpin",
    ),
    path(
        "<int:run_id>/checkpoints/<slug:name>/delete",
        checkpoints.checkpoint_delete,
        name="checkpoint_delete",
    ),
    path("<int:run_id>/config/", run_detail.config, name="run_config"),
    path("<int:run_id>/checkpoints/", checkpoints.checkpoints, name="run_checkpoints"),
]


SAMPLES = [
    path("<int:run_id>/groups/", groups.groups, name="groups"),
    path("<int:run_id>/samples/", groups.samples, name="run_samples"),
    path("<int:run_id>/groups/<int:step>/<int:prompt>/", groups.group, name="group"),
    path(
        "<int:run_id>/groups/<int:step>/<int:prompt>/marks/",
        completions.group_marks,
        name="group_marks",
    ),
    path(
        "<int:run_id>/export/<export>.jsonl",
        completions.run_annotations,
        name="run_annotations",
    ),
    path(
        "<int:run_id>/groups/<int:step>/<int:prompt>/tokens.json",
        groups.group_tokens,
        name="group_tokens",
    ),
    path("<int:run_id>/completions/", completions.completions, name="completions"),
    path("<int:run_id>/prompts/", prompts.run_prompts, name="run_prompts"),
    path(
        "<int:run_id>/prompts/curriculum/",
        prompts.run_curriculum,
        name="run_curriculum",
    ),
    path("<int:run_id>/prompts/<int:prompt>/", prompts.run_prompt, name="run_prompt"),
    path("<int:run_id>/questions/", questions.run_questions, name="run_questions"),
    path(
        "<int:run_id>/questions/<int:question_id>/", questions.question, name="question"
    ),
    path(
        "<int:run_id>/questions/<int:question_id>/progress",
        questions.question_progress,
        name="question_progress",
    ),
    path(
        "<int:run_id>/questions/<int:question_id>/check",
        questions.question_check,
        name="question_check",
    ),
    path("prompts/", prompts.prompts_of_runs, name="prompts_of_runs"),
    path("<int:run_id>/reward-log/", groups.reward_log, name="run_reward_log"),
    path("<int:run_id>/signals/<chart>.json", groups.signals, name="run_signals"),
]


SHELL = [
    path("search", shell.search, name="search"),
    path("status", shell.shell_status, name="shell_status"),
    path("notifications", shell.notifications, name="notifications"),
    path("mentions/", comments.mentions, name="mentions"),
]


WORKERS = [
    path("compute/", compute.compute, name="compute"),
    path("workers/<int:worker_id>/drain", compute.worker_drain, name="worker_drain"),
    path(
        "workers/<int:worker_id>/undrain", compute.worker_undrain, name="worker_undrain"
    ),
    path("models/", checkpoints.models, name="models"),
    path(
        "models/<int:model_id>/unpublish",
        checkpoints.model_unpublish,
        name="model_unpublish",
    ),
]


LOGS = [
    path("<int:run_id>/logs/", run_detail.run_logs, name="run_logs"),
    path("<int:run_id>/logs.json", run_detail.log_part, name="run_log_part"),
    path("<int:run_id>/logs/line.json", run_detail.log_line, name="run_log_line"),
    path("<int:run_id>/logs/search.json", run_detail.log_search, name="run_log_search"),
    path(
        "<int:run_id>/logs/download", run_detail.download_log, name="run_log_download"
    ),
    path("<int:run_id>/ranks/", run_charts.run_ranks, name="run_ranks"),
    path(
        "<int:run_id>/system.json", run_charts.system_samples, name="run_system_samples"
    ),
    path(
        "<int:run_id>/checkpoints/<slug:name>/model.tar",
        checkpoints.checkpoint_download,
        name="checkpoint_download",
    ),
    path(
        "<int:run_id>/checkpoints/<slug:name>/publish",
        checkpoints.checkpoint_publish,
        name="checkpoint_publish",
    ),
]


PERSONAL = [
    path("account/data/", account.person_data, name="person_data"),
    path("account/data/download", account.person_download, name="person_download"),
]
STORAGE = [
    path("settings/storage", team_admin.team_storage, name="team_storage"),
    path("settings/compute", team_admin.team_compute, name="team_compute"),
    path("settings/judges", questions.team_judges, name="team_judges"),
    path("settings/prices", costs.team_prices, name="team_prices"),
    path("settings/costs", costs.team_costs, name="team_costs"),
    path("settings/costs.csv", costs.team_costs_file, name="team_costs_file"),
]

urlpatterns = [
    path("public/<str:token>/", reports.public_report, name="public_report"),
    path("help/", help_pages.contents, name="help"),
    path("help/about/<path:term>/", help_pages.about, name="help_about"),
    path("help/<slug:topic>/", help_pages.topic, name="help_topic"),
    *PERSONAL,
    *ACCOUNTS,
    path("<slug:team>/datasets/", include(DATASETS)),
    path("<slug:team>/rewards/", include(RECIPES)),
    path("<slug:team>/runs/", include(RUNS)),
    path("<slug:team>/runs/", include(EXCHANGE)),
    path("<slug:team>/runs/", include(SAMPLES)),
    path("<slug:team>/runs/", include(LOGS)),
    path("<slug:team>/runs/<int:run_id>/", include(HEALTH)),
    path("<slug:team>/", include(SHELL)),
    path("<slug:team>/", include(ALERTS)),
    path("<slug:team>/", include(WORKERS)),
    path("<slug:team>/", include(PROBES)),
    path("<slug:team>/", include(RESCORINGS)),
    path("<slug:team>/", include(ANALYSIS)),
    path("<slug:team>/reports/", include(REPORTS)),
    path("<slug:team>/audit-log/", include(AUDIT_LOG)),
    path("<slug:team>/", include(TOKENS)),
    path("<slug:team>/", include(STORAGE)),
]
