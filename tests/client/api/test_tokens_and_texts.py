"""A token goes only to its own server, and a server's text is escaped."""

import io
import sys

import pytest

from cohort.__main__ import main
from cohort.http import Server, find_server, save_login
from tests.client.api.scripted import Scripted


def test_a_token_goes_to_no_other_server(monkeypatch):
    save_login(Server("https://cohort.example.org", "cohort_secret"))
    monkeypatch.setenv("COHORT_URL", "https://elsewhere.example.org")

    with pytest.raises(ValueError, match=r"https://elsewhere\.example\.org"):
        find_server()
    monkeypatch.setenv("COHORT_URL", "https://cohort.example.org/")
    assert find_server().token == "cohort_secret"


def test_a_token_is_never_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("cohort_s\x07ecret\n"))
    codes = [main(["login", "http://127.0.0.1:9"])]
    monkeypatch.setattr(sys, "stdin", io.StringIO("cohort_other\n"))
    codes.append(main(["login", "http://alice:cohort_secret@127.0.0.1:9"]))
    output = capsys.readouterr()

    assert codes == [2, 2]
    assert "ecret" not in output.out + output.err
    with Scripted() as server:
        assert "secret" not in repr([server.client(), server.client().server])


def test_control_characters_of_a_server_are_escaped(monkeypatch, capsys):
    title = {"key": "a\x1b[2J", "title": "b\nc"}
    with Scripted((200, {}, {"presets": [title]})) as server:
        monkeypatch.setenv("COHORT_URL", server.url)
        monkeypatch.setenv("COHORT_TOKEN", "t")
        assert main(["presets", "list"]) == 0

    assert capsys.readouterr().out == "KEY       TITLE\na\\x1b[2J  b c\n"
