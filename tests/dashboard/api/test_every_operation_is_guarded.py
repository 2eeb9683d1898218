"""Who gets which answer from every operation: a new one without a row fails here."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone
from ninja.operation import Operation

from dashboard.accounts.invitations import invite
from dashboard.accounts.models import Membership, Role, Team, User
from dashboard.alerts.channels import add_channel
from dashboard.alerts.models import Alert
from dashboard.api.auth import Bearer
from dashboard.api.urls import urlpatterns
from dashboard.api.v1 import api
from dashboard.datasets.imports.jobs import start_job
from dashboard.datasets.imports.mapping import Mapping
from dashboard.datasets.imports.uploads import store_upload
from dashboard.exchange.models import RunImport
from dashboard.runs.models import Run, RunGroup, TeamPreset
from dashboard.runs.table.saved_views import save_view
from dashboard.training.outside.opening import Opening, open_run
from tests.dashboard.alerts.factories import make_alert, make_delivery, make_rule
from tests.dashboard.api.asking import BASE, Program, make_token, token_of
from tests.dashboard.probes.factories import make_probe, make_version
from tests.dashboard.reports.stories import make_report
from tests.dashboard.rescoring.factories import start
from tests.dashboard.samples.factories import RULES, make_group, make_run
from tests.dashboard.training.machines import make_worker

pytestmark = pytest.mark.django_db

# By operation: the scope that it takes; None: any.
SCOPES: dict[str, str | None] = {
    "me": None,
    "own_token": None,
    "revoke_own_token": None,
    "runs": "read",
    "run": "read",
    "metrics": "read",
    "evaluations": "read",
    "run_file": "read",
    "checkpoints": "read",
    "groups": "read",
    "group": "read",
    "completions": "read",
    "compare": "read",
    "alerts": "read",
    "alert": "read",
    "alert_rules": "read",
    "alert_rule": "read",
    "alert_channels": "read",
    "alert_channel": "read",
    "deliveries": "read",
    "delivery": "read",
    "presets": "read",
    "preset": "read",
    "datasets": "read",
    "dataset": "read",
    "dataset_versions": "read",
    "dataset_version": "read",
    "dataset_rows": "read",
    "dataset_import": "read",
    "dataset_imports": "read",
    "dataset_uses": "read",
    "dataset_file": "read",
    "dataset_uploads": "read",
    "dataset_upload": "read",
    "dataset_splits": "read",
    "dataset_statistics": "read",
    "dataset_changes": "read",
    "dataset_leaks": "read",
    "generators": "read",
    "generator": "read",
    "recipes": "read",
    "recipe": "read",
    "recipe_versions": "read",
    "rescorings": "read",
    "rescoring": "read",
    "workers": "read",
    "worker": "read",
    "recipe_version": "read",
    "rule_kinds": "read",
    "read_recipe_formula": "read",
    "queue": "read",
    "team_presets": "read",
    "team_preset": "read",
    "views": "read",
    "view": "read",
    "mentions": "read",
    "team": "read",
    "members": "read",
    "member": "read",
    "storage": "read",
    "retention": "read",
    "sweeps": "read",
    "sweep": "read",
    "checkpoint_model": "read",
    "models": "read",
    "model": "read",
    "probes": "read",
    "probe": "read",
    "probe_groups": "read",
    "chats": "read",
    "chat": "read",
    "reports": "read",
    "report": "read",
    "report_blocks": "read",
    "report_versions": "read",
    "report_version": "read",
    "report_file": "read",
    "rescoring_file": "read",
    "estimate_rescoring": "read",
    "run_prompts": "read",
    "run_prompt": "read",
    "prompt_completions": "read",
    "completion_facets": "read",
    "compare_curves": "read",
    "compare_metrics": "read",
    "weigh_sweep": "read",
    "compare_prompts": "read",
    "compare_prompt": "read",
    "votes": "read",
    "ballot": "read",
    "run_audit": "read",
    "audit_examples": "read",
    "run_imports": "read",
    "run_import": "read",
    "run_file_sent": "read",
    "run_log": "read",
    "run_log_line": "read",
    "run_log_search": "read",
    "run_log_file": "read",
    "run_system": "read",
    "reward_log": "read",
    "run_signals": "read",
    "group_tokens": "read",
    "run_marks": "read",
    "run_config_file": "read",
    "run_lineage": "read",
    "run_changes": "read",
    "check_recipe": "read",
    "try_recipe": "read",
    "act_on_runs": "write",
    "describe": "write",
    "delete_run": "write",
    "stop_run": "write",
    "cancel": "write",
    "pause_run": "write",
    "resume": "write",
    "pin_checkpoint": "write",
    "unpin_checkpoint": "write",
    "delete_checkpoint": "write",
    "mark": "write",
    "acknowledge_alert": "write",
    "mute_run_alerts": "write",
    "create_alert_rule": "write",
    "change_alert_rule": "write",
    "switch_alert_rule": "write",
    "mute_alert_rule": "write",
    "delete_alert_rule": "write",
    "add_alert_channel": "write",
    "choose_channel_events": "write",
    "switch_alert_channel": "write",
    "change_channel_secret": "write",
    "test_alert_channel": "write",
    "delete_alert_channel": "write",
    "send_delivery_again": "write",
    "move_queued_run": "write",
    "hold_queued_run": "write",
    "release_queued_run": "write",
    "set_run_priority": "write",
    "save_team_preset": "write",
    "rename_team_preset": "write",
    "delete_team_preset": "write",
    "create_view": "write",
    "update_view": "write",
    "set_default_view": "write",
    "remove_view": "write",
    "mark_mentions_seen": "write",
    "leave_team": "write",
    "launch": "write",
    "start_import": "write",
    "stop_import": "write",
    "retry_import": "write",
    "begin_dataset_upload": "write",
    "send_dataset_part": "write",
    "finish_dataset_upload": "write",
    "import_dataset_upload": "write",
    "discard_dataset_upload": "write",
    "fetch_dataset": "write",
    "choose_dataset_part": "write",
    "preview_dataset_upload": "write",
    "render_dataset_prompt": "write",
    "render_upload_prompt": "write",
    "save_dataset_rows": "write",
    "generate_dataset": "write",
    "split_dataset": "write",
    "count_dataset_tokens": "write",
    "trash_dataset": "write",
    "restore_dataset": "write",
    "delete_dataset": "write",
    "create_recipe": "write",
    "create_recipe_version": "write",
    "rescore": "write",
    "stop_rescoring": "write",
    "plan_sweep": "write",
    "launch_sweep": "write",
    "check_launch": "write",
    "preview_prompt": "write",
    "choose_best": "write",
    "publish_checkpoint": "write",
    "unpublish_model": "write",
    "start_probe": "write",
    "stop_probe": "write",
    "ask_checkpoint": "write",
    "stop_chat": "write",
    "create_report": "write",
    "save_report": "write",
    "delete_report": "write",
    "share_report": "write",
    "revoke_report": "write",
    "preview_report": "write",
    "pin_block": "write",
    "restore_report": "write",
    "delete_rescoring": "write",
    "dataset_of_prompts": "write",
    "vote": "write",
    "begin_run_import": "write",
    "send_run_file": "write",
    "read_run_import": "write",
    "make_run_import": "write",
    "stop_run_import": "write",
    "discard_run_import": "write",
    "begin_run_file": "write",
    "send_run_part": "write",
    "extend": "write",
    "change_settings": "write",
    "drain_worker": "admin",
    "undrain_worker": "admin",
    "tokens": "admin",
    "token": "admin",
    "delete_token": "admin",
    "transfer_team": "admin",
    "change_member_role": "admin",
    "deactivate_member": "admin",
    "reactivate_member": "admin",
    "remove_team_member": "admin",
    "invitations": "admin",
    "invite_member": "admin",
    "revoke_invitation": "admin",
    "set_retention": "admin",
    "audit_log": "admin",
    "audit_log_file": "admin",
    "outside_runs": "ingest",
    "outside_place": "ingest",
    "outside_events": "ingest",
    "outside_lives": "ingest",
}
OPENING = Opening(key=UUID(int=1), name="known", tool="TRL")
SCOPE_SETS = {
    "read": {"read"},
    "write": {"read", "write"},
    "ingest": {"ingest"},
    "admin": {"read", "write", "ingest", "admin"},
}
# What the role allows, whatever the token says.
OF_ROLE = {
    Role.VIEWER: {"read"},
    Role.MEMBER: {"read", "write", "ingest"},
    Role.ADMIN: {"read", "write", "ingest", "admin"},
    Role.OWNER: {"read", "write", "ingest", "admin"},
}
# Of the whole server: every team's admins may ask it of every worker.
SHARED = {
    *("drain_worker", "undrain_worker", "worker", "preset"),
    *("generator", "generate_dataset", "audit_log_file"),
}
# What takes an owner, who has an admin's token.
OWNERS = {"deactivate_member", "reactivate_member"}
# Of one person: another of the team does not find it.
OWN = {
    *("send_dataset_part", "view", "update_view", "set_default_view", "remove_view"),
}
# What operations need before they look for what the address names.
BODIES: dict[str, object] = {
    "describe": {},
    "mark": {"action": "judge", "value": "good"},
    "create_recipe_version": {"spec": {}},
    "outside_lives": {"from_step": 0},
    "import_dataset_upload": {},
    "choose_dataset_part": {"choice": "train"},
    "preview_dataset_upload": {},
    "render_dataset_prompt": {"model": "m"},
    "render_upload_prompt": {"model": "m"},
    "save_dataset_rows": {"name": "n"},
    "split_dataset": {"train_name": "a", "eval_name": "b"},
    "count_dataset_tokens": {"model": "m"},
    "restore_dataset": {},
    "mute_run_alerts": {"mute": "1h"},
    "change_alert_rule": {},
    "switch_alert_rule": {"is_enabled": False},
    "mute_alert_rule": {"mute": None},
    "choose_channel_events": {"events": ["run.failed"]},
    "switch_alert_channel": {"is_enabled": True},
    "move_queued_run": {"where": "up"},
    "set_run_priority": {"priority": "low"},
    "rename_team_preset": {"name": "n"},
    "update_view": {},
    "set_default_view": {"is_default": True},
    "change_member_role": {"role": "viewer"},
    "choose_best": {"metric": ""},
    "publish_checkpoint": {"name": "x"},
    "ask_checkpoint": {"text": "1+1="},
    "save_report": {"number": 1},
    "pin_block": {"number": 1, "to": "pinned"},
    "dataset_of_prompts": {"name": "x"},
    "make_run_import": {"name": "x"},
    "begin_run_file": {"filename": "x", "num_bytes": 1},
    "extend": {"num_steps": 9},
    "change_settings": {"settings": {"checkpoint.every_steps": 5}},
}
QUERIES = {
    "outside_events": "?epoch=1&first=1",
    "send_dataset_part": "?offset=0",
    "dataset_leaks": "?against={version_id}",
    "compare_prompt": "?a={run_id}&b={outside_id}",
    "run_log_line": "?at=0",
    "run_log_search": "?q=x",
    "send_run_part": "?offset=0",
}
# What is not kept of the things that are there.
ABSENT = {
    *("compare_prompt", "audit_examples", "group_tokens"),
    *("run_log", "run_log_line", "run_log_search", "run_log_file"),
}
REMOVING = {
    *("delete_report", "delete_rescoring", "discard_run_import", "unpublish_model"),
    "delete_run",
}
# Sent as a form.
FILES = {"send_run_file"}
# Lists of what is no team's, or of who asks.
OF_ALL = {
    *("me", "own_token", "presets", "workers", "tokens", "compare", "generators"),
    *("rule_kinds", "alert_rules", "queue", "team", "members", "storage", "retention"),
    "audit_log",
}
# Named by numbers in the query.
OF_RUNS = {
    *("compare", "compare_curves", "compare_metrics", "weigh_sweep"),
    *("compare_prompts", "votes", "ballot"),
}
NOT_OPERATIONS = {"api_openapi": 200, "api_no_such_address": 404}


def operations() -> Iterator[tuple[str, str, str, Operation]]:
    """Name, method, address with its parameters, and the operation itself."""
    for router in api._get_bound_routers():
        for path, view in router.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    name = operation.view_func.__name__
                    yield name, method, f"{router.prefix}{path}", operation


def test_every_operation_has_a_row_and_every_row_an_operation() -> None:
    assert sorted(name for name, *_ in operations()) == sorted(SCOPES)


def test_every_operation_takes_the_scope_of_its_row() -> None:
    for name, _, _, operation in operations():
        taken = {auth.scope for auth in operation.auth_callbacks}
        assert all(isinstance(auth, Bearer) for auth in operation.auth_callbacks), name
        assert taken == {SCOPES[name]}, name


def test_every_address_is_behind_the_entrance() -> None:
    names = {pattern.name for pattern in urlpatterns}

    assert names == {f"api_{name}" for name in SCOPES} | set(NOT_OPERATIONS)
    for pattern in urlpatterns:
        assert pattern.callback.login_required is False, pattern.name


@pytest.fixture
def people(team: Team, alice: User, bob: User) -> dict[str, User]:
    found = {Role.OWNER: alice, Role.VIEWER: bob}
    for role in (Role.MEMBER, Role.ADMIN):
        found[role] = User.objects.create_user(f"the-{role}")
        Membership.objects.create(team=team, user=found[role], role=role)
    return {str(role): user for role, user in found.items()}


@pytest.fixture
def addresses(team: Team, alice: User) -> dict[str, str]:
    """Of every operation, with the numbers of things that are there."""
    known = known_things(team, alice)
    return {
        name: (path + QUERIES.get(name, "")).format(**known)
        for name, _, path, _ in operations()
    }


def known_things(team: Team, user: User) -> dict[str, int | str]:
    run = make_run(team)
    make_group(run, step=1, prompt_index=0)
    file = SimpleUploadedFile("rows.jsonl", b'{"prompt": "1+1="}\n')
    upload = store_upload(team=team, user=user, file=file, dataset=None)
    job, _ = start_job(
        upload=upload, mapping=Mapping(prompt="prompt"), name="Rows", user=user
    )
    checkpoint = run.checkpoints.create(
        name="step-000001-epoch-1",
        step=1,
        epoch=1,
        sha256="ab" * 32,
        num_bytes=1,
        saved_at=timezone.now(),
    )
    model = team.published_models.create(
        name="First", run=run, run_name=run.name, step=1, sha256="ab" * 32, num_bytes=1
    )
    chat = checkpoint.chats.create(
        team=team,
        question={"turns": [[], []], "row": {"prompt": "1"}},
        answers=[{"completions": []}, {"completions": []}],
    )
    run_import = RunImport.objects.create(team=team)
    assert run.dataset_version
    assert run.recipe_version
    return {
        "token_id": token_of(make_token(user, name="known")).pk,
        "run_id": run.pk,
        "outside_id": open_run(OPENING, team=team, user=user)[0].pk,
        "step": 1,
        "prompt_index": 0,
        "file": "metrics.csv",
        "name": checkpoint.name,
        "dataset_id": run.dataset_version.dataset_id,
        "version_id": run.dataset_version_id,
        "job_id": job.pk,
        "upload_id": upload.pk,
        "rows_format": "jsonl",
        "task": "chain_sum",
        "recipe_id": run.recipe_version.recipe_id,
        "alert_id": make_alert(run, make_rule(team)).pk,
        "rescoring_id": start(run).pk,
        "worker_id": make_worker().pk,
        "log_format": "csv",
        "sweep_id": RunGroup.objects.create(team=team, name="Rates").pk,
        "model_id": model.pk,
        "probe_id": make_probe(team, make_version(team)).pk,
        "chat_id": chat.pk,
        "report_id": make_report(team, user, "::table runs=1").pk,
        "import_id": run_import.pk,
        "file_id": run_import.files.create(
            filename="1.jsonl", stored_name="1", num_bytes=1
        ).pk,
        "key": "dr-grpo",
        "chart": "map",
        "signal": "length",
        "export": "annotations",
        "suffix": "toml",
        "place": 0,
        "number": 1,
        "file_kind": "html",
        "file_format": "jsonl",
        **known_of_team(team, user, run),
    }


def known_of_team(team: Team, user: User, run: Run) -> dict[str, int | str]:
    """What people set up."""
    by = Membership.objects.get(team=team, user=user)
    other = User.objects.create_user("known")
    channel = add_channel(
        team=team,
        user=user,
        kind="email",
        address="known@example.org",
        events=["alert.fired"],
    )
    view = save_view(team=team, user=user, name="known", query="", is_shared=False)
    preset = TeamPreset.objects.create(team=team, name="known", config={})
    return {
        "rule_id": make_rule(team, name="Known").pk,
        "channel_id": channel.pk,
        "delivery_id": str(make_delivery(channel).pk),
        "code": view.code,
        "preset_id": preset.pk,
        "member_id": Membership.objects.create(team=team, user=other).pk,
        "invitation_id": invite(by=by, role="member")[0].pk,
        "recipe_version_id": run.recipe_version_id or 0,
    }


def ask_all(program: Program, addresses: dict[str, str]) -> dict[str, int]:
    """The status of each operation, asked without a body; what removes comes last."""
    ordered = sorted(operations(), key=lambda each: _turn(each[0], each[1]))
    return {
        name: program.ask(method, addresses[name]).status_code
        for name, method, _, _ in ordered
    }


def _turn(name: str, method: str) -> int:
    if name == "revoke_own_token":
        return 3  # whoever has done that asks no more
    return 2 if name in REMOVING else int(method == "DELETE")


def test_nobody_asks_without_a_token(addresses: dict[str, str]) -> None:
    assert set(ask_all(Program(), addresses).values()) == {401}


def test_a_session_is_no_token(addresses: dict[str, str], alice: User) -> None:
    program = Program()
    program.client.force_login(alice)

    assert set(ask_all(program, addresses).values()) == {401}


def token_with(user: User, role: str, scope: str) -> str:
    """Also one that was made while the role was another."""
    if scope in OF_ROLE[Role(role)]:
        return make_token(user, scope)
    with pytest.raises(ValueError, match="does not allow the scope"):
        make_token(user, scope)
    text = make_token(user)
    token = token_of(text)
    token.scopes = [scope]
    token.save()
    return text


@pytest.mark.parametrize("role", OF_ROLE)
@pytest.mark.parametrize("scope", SCOPE_SETS)
def test_a_token_may_do_what_both_its_scope_and_its_role_allow(
    role: Role, scope: str, people: dict[str, User]
) -> None:
    me = Program(token_with(people[role], role, scope)).get("/me").json()

    assert set(me["scopes"]) == SCOPE_SETS[scope] & OF_ROLE[role]


# Each role with all scopes, and each scope with all that a role allows.
EDGES = [
    *((role, "admin") for role in OF_ROLE),
    *((Role.OWNER, scope) for scope in SCOPE_SETS if scope != "admin"),
]


@pytest.mark.parametrize(("role", "scope"), EDGES)
def test_an_operation_is_refused_to_who_may_not_ask_it(
    role: Role, scope: str, addresses: dict[str, str], people: dict[str, User]
) -> None:
    may = SCOPE_SETS[scope] & OF_ROLE[role]

    found = ask_all(Program(token_with(people[role], role, scope)), addresses)

    for name, status in found.items():
        is_allowed = SCOPES[name] in {None, *may}
        if name in OWNERS:
            is_allowed = is_allowed and role == Role.OWNER
        assert (status != 403) == is_allowed, (name, status)
        assert status not in (401, 405), (name, status)
        assert status != 404 or name in ABSENT | OWN, (name, status)
        assert status < 500, (name, status)


def test_another_teams_things_are_not_found(
    addresses: dict[str, str], charlie: User
) -> None:
    program = Program(make_token(charlie, "admin"))

    for name, method, path, _ in operations():
        if "{" in path and name not in SHARED:
            status = _ask(program, name, method, addresses[name])
            assert status == 404, (name, status)


def _ask(program: Program, name: str, method: str, address: str) -> int:
    if name in FILES:
        file = SimpleUploadedFile("log.jsonl", b"{}")
        headers = program.headers
        answer = program.client.post(BASE + address, {"file": file}, headers=headers)
        return int(answer.status_code)
    return program.ask(method, address, BODIES.get(name)).status_code


def test_numbers_in_a_body_are_looked_for_in_the_team_too(
    addresses: dict[str, str], team: Team, charlie: User
) -> None:
    """What is not found is refused, whether it is another team's or nobody's."""
    run = team.runs.get(origin={})
    assert run.dataset_version
    dataset_id = run.dataset_version.dataset_id
    preset = TeamPreset.objects.create(team=team, name="Ours", config=run.config)
    program = Program(make_token(charlie, "admin"))
    asked: dict[str, list[dict[str, object]]] = {
        "/rescorings": [{"run_id": run.pk}],
        "/rescorings/estimate": [{"run_id": run.pk}],
        "/runs/actions": [{"action": "stop", "run_ids": [run.pk]}],
        "/alert-rules": [{"metric": "m", "kind": "missing", "run_id": run.pk}],
        "/team/transfer": [{"member_id": team.memberships.all()[0].pk}],
        "/dataset-fetches": [{"link": "a/b", "dataset_id": dataset_id}],
        "/dataset-uploads": [
            {
                "filename": "f",
                "num_bytes": 1,
                "fingerprint": "f",
                "dataset_id": dataset_id,
            }
        ],
        "/compare/votes": [
            {"a": run.pk, "b": run.pk + 1, "prompt_index": 0, "choice": "tie"}
        ],
        "/recipes/check": [
            {"spec": {"rules": RULES}, "dataset_version_id": run.dataset_version_id}
        ],
        "/recipes/try": [
            {"spec": {"rules": RULES}, "run_id": run.pk},
            {"spec": {"rules": RULES}, "probe_id": 1},
        ],
    }
    launches: list[dict[str, object]] = [
        {"start": f"run-{run.pk}"},
        {"dataset_version_id": run.dataset_version_id},
        {"recipe_version_id": run.recipe_version_id},
        {"evaluation_sets": [{"dataset_version_id": run.dataset_version_id}]},
    ]
    swept = {"sweep": [{"setting": "seed", "values": ["0..2"]}]}
    for path in ("/launches", "/launches/check", "/launches/prompt", "/probes"):
        asked[path] = launches
    for path in ("/sweeps", "/sweeps/plan"):
        asked[path] = [launch | swept for launch in launches]

    for path, bodies in asked.items():
        for body in bodies:
            assert program.post(path, body).status_code in (404, 422), (path, body)
    for address in (
        f"/compare?runs={run.pk}",
        f"/compare/curves?runs={run.pk}",
        f"/compare/metrics?runs={run.pk}",
        f"/compare/sweep?runs={run.pk}",
        f"/compare/sweep?sweep_id={team.rungroup_set.get().pk}",
        f"/compare/prompts?a={run.pk}&b={run.pk + 1}",
        f"/compare/votes?a={run.pk}&b={run.pk + 1}",
        f"/compare/ballot?a={run.pk}&b={run.pk + 1}&prompt_index=0",
        f"/alerts?run_id={run.pk}",
        f"/presets/run-{run.pk}",
        f"/presets/team:{preset.pk}",
    ):
        assert program.get(address).status_code == 404, address
    alert = Alert.objects.get()
    assert program.get(f"/alerts?rule_id={alert.rule_id}").status_code == 404
    assert program.get(f"/deliveries?alert_id={alert.pk}").status_code == 404
    assert Run.objects.count() == 2


def test_lists_hold_only_the_teams_own(
    addresses: dict[str, str], charlie: User
) -> None:
    program = Program(make_token(charlie, "admin"))

    for name, method, path, _ in operations():
        if method == "GET" and "{" not in path and name not in OF_ALL | OF_RUNS:
            found = program.get(path).json()
            assert found.get("total", 0) == len(found.get("items", [])), name
            assert found["items"] == [], name
