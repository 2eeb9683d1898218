from django.test import Client

from dashboard.project.environment import read_environment


def test_liveness_needs_no_database():
    assert Client().get("/healthz").json() == {"status": "ok"}


def test_a_health_check_works_with_any_allowed_hosts(monkeypatch, settings):
    """The container's health check uses 127.0.0.1, not a public name."""
    for host in ["127.0.0.1:8000", "localhost", "[::1]:8000"]:
        monkeypatch.setenv("COHORT_ALLOWED_HOSTS", "cohort.example.org")
        settings.ALLOWED_HOSTS = list(read_environment().allowed_hosts)

        assert Client().get("/healthz", headers={"host": host}).status_code == 200, host
        other = Client().get("/sign-in/", headers={"host": "evil.example"})
        assert other.status_code == 400, host
