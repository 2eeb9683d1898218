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
from dashboard.runs.models import Run, TeamPreset
from dashboard.runs.table.saved_views import save_view
from dashboard.training.outside.opening import Opening, open_run
from tests.dashboard.alerts.factories import make_alert, make_delivery, make_rule
from tests.dashboard.api.asking import Program, make_token, token_of
from tests.dashboard.rescoring.factories import start
from tests.dashboard.samples.factories import make_group, make_run
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
    "act_on_runs": "write",
    "describe": "write",
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
    *("drain_worker", "undrain_worker", "worker"),
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
}
QUERIES = {
    "outside_events": "?epoch=1&first=1",
    "send_dataset_part": "?offset=0",
    "dataset_leaks": "?against={version_id}",
}
# Lists of what is no team's, or of who asks.
OF_ALL = {
    *("me", "own_token", "presets", "workers", "tokens", "compare", "generators"),
    *("rule_kinds", "alert_rules", "queue", "team", "members", "storage", "retention"),
    "audit_log",
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
    """The status of each operation, asked without a body; those that delete, last."""
    asked = sorted(operations(), key=lambda each: each[1] == "DELETE")
    return {
        name: program.ask(method, addresses[name]).status_code
        for name, method, _, _ in asked
    }


def test_nobody_asks_without_a_token(addresses: dict[str, str]) -> None:
    assert set(ask_all(Program(), addresses).values()) == {401}


def test_a_session_is_no_token(addresses: dict[str, str], alice: User) -> None:
    program = Program()
    program.client.force_login(alice)

    assert set(ask_all(program, addresses).values()) == {401}


@pytest.mark.parametrize("role", OF_ROLE)
@pytest.mark.parametrize("scope", SCOPE_SETS)
def test_scope_and_role_decide_together(
    role: Role, scope: str, addresses: dict[str, str], people: dict[str, User]
) -> None:
    user = people[role]
    may = SCOPE_SETS[scope] & OF_ROLE[role]
    if scope not in OF_ROLE[role]:
        with pytest.raises(ValueError, match="does not allow the scope"):
            make_token(user, scope)
        # One that was made while the role was another.
        text = make_token(user)
        token = token_of(text)
        token.scopes = [scope]
        token.save()
    else:
        text = make_token(user, scope)

    found = ask_all(Program(text), addresses)

    for name, status in found.items():
        is_allowed = SCOPES[name] in {None, *may}
        if name in OWNERS:
            is_allowed = is_allowed and role == Role.OWNER
        assert (status != 403) == is_allowed, (name, status)
        wrong = (401, 405) if name in OWN else (401, 404, 405)
        assert status not in wrong, (name, status)
        assert status < 500, (name, status)


def test_another_teams_things_are_not_found(
    addresses: dict[str, str], charlie: User
) -> None:
    program = Program(make_token(charlie, "admin"))

    for name, method, path, _ in operations():
        if "{" in path and name not in SHARED:
            tree = BODIES.get(name)
            status = program.ask(method, addresses[name], tree).status_code
            assert status == 404, (name, status)


def test_numbers_in_a_body_are_looked_for_in_the_team_too(
    addresses: dict[str, str], team: Team, charlie: User
) -> None:
    """What is not found is refused, whether it is another team's or nobody's."""
    run = team.runs.get(origin={})
    assert run.dataset_version
    dataset_id = run.dataset_version.dataset_id
    program = Program(make_token(charlie, "admin"))
    asked: dict[str, list[dict[str, object]]] = {
        "/rescorings": [{"run_id": run.pk}],
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
        "/launches": [
            {"start": f"run-{run.pk}"},
            {"dataset_version_id": run.dataset_version_id},
            {"recipe_version_id": run.recipe_version_id},
            {"evaluation_sets": [{"dataset_version_id": run.dataset_version_id}]},
        ],
    }

    for path, bodies in asked.items():
        for body in bodies:
            assert program.post(path, body).status_code in (404, 422), (path, body)
    assert program.get(f"/compare?runs={run.pk}").status_code == 404
    assert program.get(f"/alerts?run_id={run.pk}").status_code == 404
    alert = Alert.objects.get()
    assert program.get(f"/alerts?rule_id={alert.rule_id}").status_code == 404
    assert program.get(f"/deliveries?alert_id={alert.pk}").status_code == 404
    assert Run.objects.count() == 2


def test_lists_hold_only_the_teams_own(
    addresses: dict[str, str], charlie: User
) -> None:
    program = Program(make_token(charlie, "admin"))

    for name, method, path, _ in operations():
        if method == "GET" and "{" not in path and name not in OF_ALL:
            found = program.get(path).json()
            assert found.get("total", 0) == len(found.get("items", [])), name
            assert found["items"] == [], name
