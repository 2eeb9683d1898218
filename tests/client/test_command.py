"""`cohort`, as it is installed on a training machine."""

from __future__ import annotations

import io
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.client.server import TakesAll, serve
from tests.client.test_reporter import NOWHERE, kinds, told
from trainer.client.__main__ import main
from trainer.client.http import Server, find_server, keep_login, login_path
from trainer.client.reporter import Reporter


class Knows(TakesAll):
    def answer(self, method: str, path: str, *rest: Any) -> tuple[int, Any]:
        if path != "/api/v1/me":
            return super().answer(method, path, *rest)
        if self.tokens != {"Bearer cohort_good"}:
            return 401, {"detail": "Send a token that works."}
        who: dict[str, Any] = {"person": {"name": "Alice", "username": "alice"}}
        who |= {"team": {"name": "Lab", "slug": "lab"}, "role": "member"}
        token = {"scopes": ["ingest"], "token": "mine (…good)", "expires_at": None}
        return 200, who | token


def log_in(monkeypatch: pytest.MonkeyPatch, url: str, token: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{token}\n"))
    return main(["login", url])


def test_a_login_is_kept_for_its_owner_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(Knows()) as server:
        assert log_in(monkeypatch, f"{server.url}/", "cohort_good") == 0

        assert find_server() == Server(server.url, "cohort_good")
    assert stat.S_IMODE(login_path().stat().st_mode) == 0o600
    said = capsys.readouterr().out
    assert [word for word in ("Lab", "Alice", "ingest") if word not in said] == []


def test_a_token_that_does_not_work_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(Knows()) as server:
        assert log_in(monkeypatch, server.url, "cohort_bad") == 1

    assert not login_path().exists()
    said = capsys.readouterr()
    assert said.err
    assert "cohort_bad" not in said.err + said.out


def test_what_was_kept_is_synced(
    takes: TakesAll,
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cohort = Reporter("mine", server=NOWHERE, folder=tmp_path / "run")
    told(cohort, 1)
    cohort.finish()
    cohort.close(timeout_seconds=0.2)
    keep_login(server)

    assert main(["sync", str(tmp_path / "run")]) == 0
    assert main(["sync", str(tmp_path)]) == 2

    assert kinds(takes)[-1] == "run_finished"
    said = capsys.readouterr()
    assert "http://here/alpha/runs/7/" in said.out
    assert "holds no run" in said.err
