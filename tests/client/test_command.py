"""`cohort login` and `cohort sync`."""

import io
import stat
import sys
from typing import Any

import pytest

from cohort.__main__ import main
from cohort.http import Server, find_server, login_path, save_login
from cohort.reporter import Reporter
from tests.client.server import FakeServer, serve
from tests.client.test_reporter import UNREACHABLE, kinds, report


class ServerWithLogin(FakeServer):
    def respond(self, method: str, path: str, *rest: Any) -> tuple[int, Any]:
        if path != "/api/v1/me":
            return super().respond(method, path, *rest)
        if self.tokens != {"Bearer cohort_good"}:
            return 401, {"detail": "Invalid token."}
        me: dict[str, Any] = {"person": {"name": "Alice", "username": "alice"}}
        me |= {"team": {"name": "Lab", "slug": "lab"}, "role": "member"}
        token = {"scopes": ["ingest"], "token": "mine (…good)", "expires_at": None}
        return 200, me | token


def log_in(monkeypatch: pytest.MonkeyPatch, url: str, token: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{token}\n"))
    return main(["login", url])


def test_login_saves_a_file_that_only_its_owner_can_read(monkeypatch, capsys):
    with serve(ServerWithLogin()) as server:
        assert log_in(monkeypatch, f"{server.url}/", "cohort_good") == 0

        assert find_server() == Server(server.url, "cohort_good")
    assert stat.S_IMODE(login_path().stat().st_mode) == 0o600
    output = capsys.readouterr().out
    assert [word for word in ("Lab", "Alice", "ingest") if word not in output] == []


def test_login_does_not_save_an_invalid_token(monkeypatch, capsys):
    with serve(ServerWithLogin()) as server:
        assert log_in(monkeypatch, server.url, "cohort_bad") == 1

    assert not login_path().exists()
    output = capsys.readouterr()
    assert output.err
    assert "cohort_bad" not in output.err + output.out


def test_sync_sends_what_a_reporter_could_not_send(fake, server, tmp_path, capsys):
    cohort = Reporter("mine", server=UNREACHABLE, folder=tmp_path / "run")
    report(cohort, 1)
    cohort.finish()
    cohort.close(timeout_seconds=0.2)
    save_login(server)

    assert main(["sync", str(tmp_path / "run")]) == 0
    assert main(["sync", str(tmp_path)]) == 2

    assert kinds(fake)[-1] == "run_finished"
    output = capsys.readouterr()
    assert "http://here/alpha/runs/7/" in output.out
    assert "run.json" in output.err
