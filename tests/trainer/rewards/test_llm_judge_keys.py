"""A key is sent to its own address alone, and is written nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.rewards.judge_server import Judging, status, text
from tests.trainer.rewards.test_llm_judge_faults import SCORE, ask, params_of
from trainer.internet import Refused, read_url
from trainer.rewards.model_judge.client import find_key
from trainer.rewards.rules.llm_judge import check_judge
from trainer.rewards.session import open_session

KEY = "sk-4711-hush"


@pytest.fixture
def keyed(judging: Judging, monkeypatch: pytest.MonkeyPatch) -> Judging:
    monkeypatch.setenv("COHORT_JUDGE_KEY_LAB", KEY)
    monkeypatch.setenv("COHORT_JUDGE_URL_LAB", judging.url)
    return judging


def test_the_key_of_the_environment_is_sent(keyed: Judging) -> None:
    assert ask(keyed, key_name="LAB") == [SCORE]

    assert keyed.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_without_a_name_no_key_is_sent(keyed: Judging) -> None:
    ask(keyed)

    assert "Authorization" not in keyed.headers[0]


@pytest.mark.parametrize(
    ("url", "goes"),
    [
        ("https://api.example.com/v1", True),
        ("https://api.example.com:443/v1/", True),
        ("https://API.example.com/v1/team", True),
        ("https://api.example.com/v1x", False),
        ("https://api.example.com/", False),
        ("https://api.example.com/v1/../v2", False),
        ("https://api.example.com/v1/%2e%2e/v2", False),
        ("https://api.example.com:8443/v1", False),
        ("http://api.example.com/v1", False),
        ("https://api.example.com.evil.example/v1", False),
        ("https://evil.example/v1", False),
    ],
)
def test_a_key_goes_to_its_own_address_alone(
    url: str, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COHORT_JUDGE_KEY_LAB", KEY)
    monkeypatch.setenv("COHORT_JUDGE_URL_LAB", "https://api.example.com/v1")

    if goes:
        assert find_key("LAB", read_url(url)) == KEY
        return
    with pytest.raises(Refused, match="JUDGE_URL_LAB") as caught:
        find_key("LAB", read_url(url))
    assert KEY not in str(caught.value)


def test_a_key_may_stand_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    monkeypatch.setenv("COHORT_JUDGE_KEY_LAB_FILE", str(path))
    monkeypatch.setenv("COHORT_JUDGE_URL_LAB", "https://api.example.com/v1")
    target = read_url("https://api.example.com/v1")

    with pytest.raises(Refused, match=f"KEY_LAB_FILE: {path} cannot be read"):
        find_key("LAB", target)
    path.write_text(f"{KEY}\n")

    assert find_key("LAB", target) == KEY


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "Set COHORT_JUDGE_KEY_LAB"),
        ({"COHORT_JUDGE_KEY_LAB": KEY}, "Set COHORT_JUDGE_URL_LAB"),
        (
            {"COHORT_JUDGE_KEY_LAB": KEY, "COHORT_JUDGE_URL_LAB": "example.com"},
            "COHORT_JUDGE_URL_LAB cannot be read",
        ),
        ({"COHORT_JUDGE_KEY_LAB": "sk\nX: y"}, "no key has"),
    ],
)
def test_what_is_missing_is_named_before_a_run_begins(
    variables: dict[str, str],
    words: str,
    judging: Judging,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ValueError, match=words) as caught:
        check_judge(params_of(judging, key_name="LAB"))

    assert KEY not in str(caught.value)
    assert words in ask(judging, key_name="LAB")[0]
    assert judging.asked == []


@pytest.mark.parametrize(
    "name", ["lab", "LAB-1", "1LAB", "PATH;X", "A" * 41, "SECRET_KEY\n", "../X"]
)
def test_no_other_variable_can_be_named(name: str, judging: Judging) -> None:
    with pytest.raises(ValueError, match="key_name"):
        params_of(judging, key_name=name)


@pytest.mark.parametrize(
    "fault",
    [
        status(400, b'{"error": "bad key ' + KEY.encode() + b'"}'),
        status(401, KEY.encode()),
        status(200, KEY.encode()),
        text(f"Your key is {KEY}"),
    ],
)
def test_an_endpoint_that_tells_the_key_is_not_repeated(
    fault: Any, keyed: Judging, tmp_path: Path
) -> None:
    keyed.faults = [fault]

    with open_session(tmp_path) as session:
        (found,) = ask(keyed, key_name="LAB", max_tries=1)
        warnings = session.take_warnings()

    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*.jsonl"))
    assert "4711" not in f"{found} {warnings}"
    assert b"4711" not in written
    assert written
