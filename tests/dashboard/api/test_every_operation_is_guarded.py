"""Who gets which answer from every operation: a new one without a row fails here."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone
from ninja.operation import Operation

from dashboard.accounts.models import Membership, Role, Team, User
from dashboard.api.auth import Bearer
from dashboard.api.urls import urlpatterns
from dashboard.api.v1 import api
from dashboard.datasets.imports.jobs import start_job
from dashboard.datasets.imports.mapping import Mapping
from dashboard.datasets.imports.uploads import store_upload
from dashboard.runs.models import Run
from dashboard.training.outside.opening import Opening, open_run
from tests.dashboard.alerts.factories import make_alert, make_rule
from tests.dashboard.api.asking import Program, make_token, token_of
from tests.dashboard.rescoring.factories import start
from tests.dashboard.samples.factories import make_group, make_run
from tests.dashboard.training.machines import make_worker

pytestmark = pytest.mark.django_db

# By operation: the scope that it takes; None: any.
SCOPES: dict[str, str | None] = {
    "me": None,
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
SHARED = {"drain_worker", "undrain_worker", "generator", "generate_dataset"}
# Of the person who began it: another of the team does not find it.
OWN = {"send_dataset_part"}
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
}
QUERIES = {
    "outside_events": "?epoch=1&first=1",
    "send_dataset_part": "?offset=0",
    "dataset_leaks": "?against={version_id}",
}
# Lists of what is no team's, or of who asks.
OF_ALL = {"me", "presets", "workers", "tokens", "compare", "generators"}
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
    }


def ask_all(program: Program, addresses: dict[str, str]) -> dict[str, int]:
    """The status of each operation, asked without a body."""
    return {
        name: program.ask(method, addresses[name]).status_code
        for name, method, _, _ in operations()
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
    program = Program(make_token(charlie, "write"))
    asked: dict[str, list[dict[str, object]]] = {
        "/rescorings": [{"run_id": run.pk}],
        "/runs/actions": [{"action": "stop", "run_ids": [run.pk]}],
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
