"""A secret may stand in a file that a variable names, and then nowhere else."""

import pytest

from dashboard.project.database import parse_database_url
from dashboard.project.environment import (
    SECRETS,
    Environment,
    hub_variables,
    read_environment,
)

VALUES = {
    "COHORT_EMAIL_URL": "smtp://mail.example.org",
    "DATABASE_URL": "postgresql://db/cohort",
}


def reported(environment: Environment) -> dict[str, str | None]:
    providers = {each.key: each.secret for each in environment.sign_in_providers}
    return {
        "DATABASE_URL": environment.database_url,
        "DATABASE_PASSWORD": environment.database_password,
        "REDIS_URL": environment.redis_url,
        "COHORT_SECRET_KEY": environment.secret_key,
        "COHORT_EMAIL_URL": environment.email_url,
        "COHORT_OIDC_SECRET": providers.get("oidc"),
        "COHORT_GITHUB_SECRET": providers.get("github"),
        "COHORT_GOOGLE_SECRET": providers.get("google"),
        "HF_TOKEN": environment.hub_token,
        "COHORT_METRICS_TOKEN": environment.observing.metrics_token,
        "COHORT_SENTRY_DSN": environment.observing.sentry_dsn,
    }


@pytest.mark.parametrize("name", [*SECRETS, "HF_TOKEN"])
def test_a_secret_is_read_from_a_file_and_shown_nowhere(name, tmp_path, monkeypatch):
    value = VALUES.get(name, "very-quiet-and-long")
    (tmp_path / "secret").write_text(f"{value}\n")
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(f"{name}_FILE", str(tmp_path / "secret"))
    if name.endswith("_SECRET"):
        monkeypatch.setenv(name.replace("_SECRET", "_ID"), "cohort")
        monkeypatch.setenv("COHORT_OIDC_URL", "https://id.example.org")
    if name != "COHORT_OIDC_SECRET":
        monkeypatch.delenv("COHORT_OIDC_URL", raising=False)

    environment = read_environment()

    assert reported(environment)[name] == value
    assert value not in repr(environment)


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    path = tmp_path / "key"
    monkeypatch.delenv("COHORT_SECRET_KEY")
    monkeypatch.setenv("COHORT_SECRET_KEY_FILE", str(path))
    with pytest.raises(ValueError, match=str(path)):
        read_environment()

    path.write_text("\n")
    with pytest.raises(ValueError, match="empty"):
        read_environment()

    path.write_text("quiet")
    monkeypatch.setenv("COHORT_SECRET_KEY", "loud")
    with pytest.raises(ValueError, match="both"):
        read_environment()


def test_the_databases_password_is_for_an_address_without_one():
    without = parse_database_url("postgresql://cohort@db:5432/cohort", "a:b/c@d")
    within = parse_database_url("postgresql://cohort:own@db:5432/cohort", "other")

    assert without["PASSWORD"] == "a:b/c@d"
    assert within["PASSWORD"] == "own"


def test_the_hubs_own_library_reads_the_same_file(monkeypatch):
    monkeypatch.setenv("HF_TOKEN_FILE", "/run/secrets/hf-token")

    assert hub_variables()["HF_TOKEN_PATH"] == "/run/secrets/hf-token"
