import runpy
import stat
import threading

import pytest
from django.test import Client

from dashboard.project.database import limit_sessions, parse_database_url
from dashboard.project.environment import ROOT, load_secret_key, read_environment
from tests.environment import run_threads


def test_every_page_has_the_content_security_policy():
    response = Client().get("/healthz", headers={"host": "localhost:8000"})

    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "connect-src 'self' ws://localhost:8000 wss://localhost:8000" in policy
    assert "unsafe" not in policy


def test_a_host_cannot_add_to_the_policy():
    response = Client().get("/healthz", headers={"host": "localhost; script-src *"})

    assert "script-src" not in response.headers["Content-Security-Policy"]


def test_no_cache_keeps_what_a_signed_in_person_saw(alice_client):
    page = alice_client.get("/alpha/runs/").headers["Cache-Control"]
    signed_out = Client().get("/sign-in/").headers

    assert set(page.split(", ")) == {"private", "no-store"}
    assert "private, no-store" not in signed_out.get("Cache-Control", "")


@pytest.mark.django_db
@pytest.mark.parametrize("is_encrypted", [True, False])
def test_cookies_of_an_encrypted_visit_stay_encrypted(is_encrypted):
    response = Client().get("/sign-in/", secure=is_encrypted)

    assert response.cookies
    for cookie in response.cookies.values():
        assert bool(cookie["secure"]) is is_encrypted


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("url", "origin", "is_taken"),
    [
        ("https://Cohort.lan:443/", "https://cohort.lan", True),
        ("https://cohort.lan:8443", "https://cohort.lan:8443", True),
        ("https://cohort.lan", "https://evil.example", False),
        ("https://cohort.lan", "https://cohort.lan:8443", False),
        ("http://cohort.lan", "https://cohort.lan", False),
        ("", "https://cohort.lan", False),
    ],
)
def test_forms_are_taken_from_the_address_that_people_use(
    url, origin, is_taken, monkeypatch, settings
):
    """A proxy brings TLS, and its word about it is not taken: the visit looks plain."""
    monkeypatch.setenv("COHORT_URL", url)
    monkeypatch.setenv("COHORT_ALLOWED_HOSTS", "cohort.lan")
    found = runpy.run_path(str(ROOT / "dashboard" / "settings.py"))
    settings.CSRF_TRUSTED_ORIGINS = found["CSRF_TRUSTED_ORIGINS"]
    settings.ALLOWED_HOSTS = found["ALLOWED_HOSTS"]
    client = Client(enforce_csrf_checks=True, headers={"host": "cohort.lan"})
    client.get("/sign-in/")
    form = {
        "username": "alice",
        "password": "wrong",
        "csrfmiddlewaretoken": client.cookies["cohort_csrf"].value,
    }

    answer = client.post("/sign-in/", form, headers={"origin": origin})

    # 422: it was read, and the password was wrong.
    assert answer.status_code == (422 if is_taken else 403)
    assert ("COHORT_URL" in answer.text) is not is_taken


def test_the_secret_key_is_made_once_and_kept_private(tmp_path):
    first = load_secret_key(tmp_path)

    assert load_secret_key(tmp_path) == first
    assert len(first) >= 50
    assert stat.S_IMODE((tmp_path / "secret-key").stat().st_mode) == 0o600


def test_processes_that_start_together_agree_on_the_secret_key(tmp_path):
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(load_secret_key(tmp_path)))
        for _ in range(8)
    ]

    run_threads(threads)

    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_database_address_is_read_with_its_options():
    found = parse_database_url("postgresql://ann:p%40ss@db:6432/cohort?sslmode=require")

    assert (found["USER"], found["PASSWORD"]) == ("ann", "p@ss")
    assert (found["HOST"], found["PORT"], found["NAME"]) == ("db", "6432", "cohort")
    assert found["OPTIONS"] == {"sslmode": "require"}


def test_an_address_of_another_database_is_refused():
    with pytest.raises(ValueError, match="'mysql'"):
        parse_database_url("mysql://ann@db/cohort")


def test_limits_keep_the_options_of_the_address():
    database = parse_database_url("postgresql://db/cohort?sslmode=require")

    limit_sessions({"default": database}, statement_seconds=15, pooled=True)

    assert database["OPTIONS"]["sslmode"] == "require"
    assert "statement_timeout=15s" in database["OPTIONS"]["options"]
    assert database["OPTIONS"]["tcp_user_timeout"] == 30_000
    assert database["OPTIONS"]["pool"]["max_size"] == 10


@pytest.mark.parametrize(
    ("hosts", "folders", "allowed"),
    [
        ("", "", ["/"]),
        ("localhost,127.0.0.1", "", ["/"]),
        ("cohort.lan", "", []),
        ("cohort.lan", "/models:/shared", ["/models", "/shared"]),
    ],
)
def test_a_server_allows_no_model_folder_that_is_not_named(
    hosts, folders, allowed, monkeypatch
):
    monkeypatch.setenv("COHORT_ALLOWED_HOSTS", hosts)
    monkeypatch.setenv("COHORT_MODEL_FOLDERS", folders)

    assert [*map(str, read_environment().model_folders)] == allowed
