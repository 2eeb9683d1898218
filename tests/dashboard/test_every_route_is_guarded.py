"""Who gets which answer at every address: a new route without a row fails here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from dashboard.accounts.models import Team, User
from dashboard.datasets.jobs import request_stop, start_job
from dashboard.datasets.mapping import Mapping
from dashboard.datasets.uploads import store_upload
from tests.dashboard.probes.factories import make_probe, make_version
from tests.dashboard.samples.factories import make_group, make_run

pytestmark = pytest.mark.django_db

UNSAFE = ("post", "put", "patch", "delete")
# Open to everybody: the status of a GET without signing in.
OPEN = {
    "healthz": 200,
    "readyz": 200,
    "help": 200,
    "sign_in": 200,
    "sign_in_link": 410,  # of a token that nobody was given
}
# No team in the address: nothing of a team is shown.
PERSONAL = {"home", "sign_out"}
# Of a team. The status of a viewer's POST: 405 where there is nothing to change, 403
# where a viewer may not, 200 where nothing is stored, or only what is the viewer's.
VIEWERS_POST = {
    "team_settings": 200,  # own name and password
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
    "dataset_statistics": 403,  # asks for tokens to be counted
    "dataset_prompt": 403,  # starts a process
    "dataset_changes": 405,
    "datasets_trash": 405,
    "dataset_trash": 403,
    "dataset_split": 403,
    "dataset_leaks": 405,
    "dataset_save": 403,
    "dataset_download": 405,
    "rewards": 405,
    "reward_new": 403,
    "reward_check": 200,  # says what is wrong with a draft
    "reward_try": 200,  # scores what was typed
    "reward": 405,
    "reward_edit": 403,
    "workbench": 200,  # shows and scores; what it writes is refused by action
    "workbench_scores": 200,
    "workbench_rows": 200,
    "recipe_findings": 405,
    "probes": 405,
    "probe": 405,
    "probe_progress": 405,
    "probe_launch": 403,
    "probe_stop": 403,
    "runs": 405,
    "runs_live": 405,
    "run_new": 403,
    "run_new_summary": 403,
    "run_new_prompt": 403,  # starts a process
    "run_new_sets": 403,
    "run_new_recipe": 403,
    "run": 405,
    "run_stop": 403,
    "run_pause": 403,
    "run_resume": 403,
    "run_stream": 405,
    "run_curves": 405,
    "run_config_file": 405,
    "run_tab": 405,
    "groups": 405,
    "group": 405,
    "completions": 405,
    "run_prompts": 403,
    "prompts_of_runs": 405,
    "run_reward_log": 405,
    "run_logs": 405,
    "run_log_download": 405,
    "workers": 405,
    "compare": 405,
    "compare_figure": 405,
}
# A viewer's GET is answered with 200, but for these.
VIEWERS_GET = {
    "run_new": 403,  # a form that a viewer could not send
    "run_curves": 400,  # without ?metrics=
    "run_log_download": 404,  # nothing was logged
    "dataset_choice": 302,  # to the file's columns, as nothing is left to choose
    "dataset_download": 302,  # to the page that says that the rows are not there
}
POST_ONLY = {
    "dataset_trash",
    "dataset_uploads",
    "dataset_map_prompt",
    "run_stop",
    "run_pause",
    "run_resume",
    "run_new_prompt",
    "run_new_summary",
    "run_new_sets",
    "run_new_recipe",
    "reward_check",
    "reward_try",
    "workbench_scores",
    "workbench_rows",
    "probe_launch",
    "probe_stop",
}


def _walk(patterns: list[Any]) -> Iterator[URLPattern]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns)
        else:
            yield pattern


def routes() -> list[URLPattern]:
    return list(_walk(get_resolver().url_patterns))


@pytest.fixture
def addresses(team: Team, alice: User) -> dict[str, str]:
    """Every route of the team, with the numbers of things that are there."""
    run = make_run(team)
    make_group(run, step=1, prompt_index=0)
    file = SimpleUploadedFile("rows.jsonl", b'{"prompt": "1+1="}\n')
    upload = store_upload(team=team, user=alice, file=file, dataset=None)
    job, _ = start_job(
        upload=upload, mapping=Mapping(prompt="prompt"), name="Rows", user=alice
    )
    request_stop(job)
    probe = make_probe(team, make_version(team))
    known = {
        "team": team.slug,
        "run_id": run.pk,
        "dataset_id": run.dataset_version.dataset_id,
        "recipe_id": run.recipe_version.recipe_id,
        "upload_id": upload.pk,
        "job_id": job.pk,
        "probe_id": probe.pk,
        "step": 1,
        "prompt": 0,
        "tab": "config",
        "suffix": "toml",
        "token": "never-given",
    }
    found = {}
    for route in routes():
        names = route.pattern.regex.groupindex
        team_of = {"team": team.slug} if route.name in VIEWERS_POST else {}
        found[str(route.name)] = reverse(
            str(route.name), kwargs={n: known[n] for n in names} | team_of
        )
    return found


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    names = [route.name for route in routes()]

    assert sorted(map(str, names)) == sorted({*OPEN, *PERSONAL, *VIEWERS_POST})


def test_what_is_open_answers_everybody(addresses: dict[str, str]) -> None:
    assert {name: _ask(Client(), "get", addresses[name]) for name in OPEN} == OPEN


@pytest.mark.parametrize("method", ["get", *UNSAFE])
def test_nobody_looks_without_signing_in(
    method: str, addresses: dict[str, str]
) -> None:
    for name in [*PERSONAL, *VIEWERS_POST]:
        response = getattr(Client(), method)(addresses[name])

        assert response.status_code == 302, name
        assert response.headers["Location"].startswith("/sign-in/?next="), name


@pytest.mark.parametrize("method", ["get", *UNSAFE])
def test_a_stranger_finds_nothing(
    method: str, addresses: dict[str, str], charlie_client: Client
) -> None:
    found = {n: _ask(charlie_client, method, addresses[n]) for n in VIEWERS_POST}

    # Some say first that the address has no such method, which tells nothing else.
    no_such_method = {n for n in found if not _takes(method, n)}
    assert {n for n, status in found.items() if status == 405} == no_such_method
    assert {found[n] for n in found if n not in no_such_method} <= {404}


def test_a_stranger_finds_nothing_through_a_team_of_their_own(
    addresses: dict[str, str], charlie_client: Client
) -> None:
    for name in VIEWERS_POST:
        method = "post" if name in POST_ONLY else "get"
        is_numbered = any(part.isdigit() for part in addresses[name].split("/"))
        if is_numbered:
            address = addresses[name].replace("/alpha/", "/other/", 1)

            assert _ask(charlie_client, method, address) == 404, name


def test_a_viewer_looks_at_everything(
    addresses: dict[str, str], bob_client: Client
) -> None:
    found = {n: _ask(bob_client, "get", addresses[n]) for n in VIEWERS_POST}

    expected = dict.fromkeys(found, 200) | dict.fromkeys(POST_ONLY, 405)
    assert found == expected | VIEWERS_GET


def test_a_viewer_changes_nothing(
    addresses: dict[str, str], bob_client: Client
) -> None:
    found = {n: _ask(bob_client, "post", addresses[n]) for n in VIEWERS_POST}

    assert found == VIEWERS_POST
    for method in ("put", "patch", "delete"):
        for name in VIEWERS_POST:
            assert _ask(bob_client, method, addresses[name]) == 405, (method, name)


def test_no_form_of_another_site_is_taken(
    addresses: dict[str, str], alice: User
) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)

    for name, address in addresses.items():
        response = client.post(address, headers={"origin": "https://evil.example"})

        assert response.status_code == 403, name


def _ask(client: Client, method: str, address: str) -> int:
    status: int = getattr(client, method)(address).status_code
    return status


def _takes(method: str, name: str) -> bool:
    if method == "get":
        return name not in POST_ONLY
    return method == "post" and VIEWERS_POST[name] != 405
