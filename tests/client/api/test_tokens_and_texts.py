"""A token goes to its own server alone, and what a server says is only text."""

from __future__ import annotations

import io
import sys

import pytest

from tests.client.api.scripted import Scripted
from trainer.client.__main__ import main
from trainer.client.http import Server, find_server, keep_login


def test_a_token_goes_to_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_login(Server("https://cohort.example.org", "cohort_secret"))
    monkeypatch.setenv("COHORT_URL", "https://elsewhere.example.org")

    with pytest.raises(ValueError, match="no token for https://elsewhere"):
        find_server()
    monkeypatch.setenv("COHORT_URL", "https://cohort.example.org/")
    assert find_server().token == "cohort_secret"


def test_a_token_is_never_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("cohort_s\x07ecret\n"))
    codes = [main(["login", "http://127.0.0.1:9"])]
    monkeypatch.setattr(sys, "stdin", io.StringIO("cohort_other\n"))
    codes.append(main(["login", "http://alice:cohort_secret@127.0.0.1:9"]))
    said = capsys.readouterr()

    assert codes == [2, 2]
    assert "ecret" not in said.out + said.err
    with Scripted() as server:
        assert "secret" not in repr([server.client(), server.client().server])


def test_a_servers_text_moves_no_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    title = {"key": "a\x1b[2J", "title": "b\nc"}
    with Scripted((200, {}, {"presets": [title]})) as server:
        monkeypatch.setenv("COHORT_URL", server.url)
        monkeypatch.setenv("COHORT_TOKEN", "t")
        assert main(["presets", "list"]) == 0

    assert capsys.readouterr().out == "KEY       TITLE\na\\x1b[2J  b c\n"
