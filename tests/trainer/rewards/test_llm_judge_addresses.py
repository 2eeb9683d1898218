"""A judge is asked at public addresses alone, and its key goes to its own."""

import socket
from typing import Any

import pytest

from tests.trainer.rewards.judge_server import Judging, judge_server, status, text
from tests.trainer.rewards.scores import scored
from tests.trainer.rewards.test_llm_judge_faults import SCORE, ask, params_of
from trainer import internet
from trainer.internet import HostAllowlist, Refused, is_public, read_url, resolve
from trainer.rewards.model_judge.client import find_key
from trainer.rewards.rules.llm_judge import check_judge
from trainer.rewards.session import open_session

JUDGES = HostAllowlist(action="A judge is called", variable="COHORT_JUDGE_HOSTS")


PRIVATE = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1",
    "0", "0.0", "10.0.0.7", "172.16.0.1", "192.168.1.1", "100.64.0.1",
    "100.100.100.200", "169.254.169.254", "2852039166", "0xa9fea9fe",
    "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]",
    "[::7f00:1]", "[fe80::1]", "[fd00:ec2::254]", "[fc00::1]", "[ff02::1]",
    "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::1]", "[2002:7f00:1::]", "[2001:0:1::1]",
    "[2001:db8::1]", "localhost", "LOCALHOST",
]  # fmt: skip


def test_an_address_that_is_not_public_is_refused():
    assert [host for host in PRIVATE if not is_refused(f"https://{host}/v1")] == []


def is_refused(url: str) -> bool:
    try:
        resolve(read_url(url), JUDGES)
    except Refused as refusal:
        return "not a public address" in str(refusal)
    return False


@pytest.mark.parametrize("ip", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_public_addresses_are_recognised(ip):
    assert is_public(ip)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "ftp://example.com",
        "//example.com",
        "example.com/v1",
        "https://",
        "https://name:secret@example.com/v1",
        "https://example.com@127.0.0.1/v1?x=1",
        "https://example.com/v1?key=1",
        "https://example.com/v1#x",
        "https://example.com:99999/v1",
        "https://exa mple.com/v1",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/v1\r\nX: y",
        "https://①②⑦.⓪.⓪.①/",
        "https://[::1/v1",
    ],
)
def test_an_invalid_base_url_is_refused_with_the_recipe(url):
    with pytest.raises(ValueError, match=r"address|base_url"):
        scored("llm_judge", "c", base_url=url, model="m")


@pytest.mark.parametrize("url", ["http://example.com/v1", "https://example.com:8443"])
def test_other_than_https_on_its_port_is_for_allowed_hosts(url):
    with pytest.raises(Refused, match="COHORT_JUDGE_HOSTS"):
        resolve(read_url(url), JUDGES)


def test_a_name_is_refused_when_one_of_its_addresses_is_private(monkeypatch):
    resolving(monkeypatch, "8.8.8.8", "10.0.0.7")

    with pytest.raises(Refused, match=r"10\.0\.0\.7"):
        resolve(read_url("https://judge.example.com/v1"), JUDGES)


def resolving(monkeypatch: pytest.MonkeyPatch, *ips: str) -> list[str]:
    """Names resolve to these addresses. Returns the names that were looked up."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (ip, port)) for ip in ips]

    monkeypatch.setattr(internet.socket, "getaddrinfo", getaddrinfo)
    return asked


def test_the_address_that_was_looked_at_is_connected_to(monkeypatch):
    with judge_server() as judging:
        port = int(judging.url.split("/")[2].partition(":")[2])
        monkeypatch.setenv("COHORT_JUDGE_HOSTS", f"judge.example.com:{port}")
        asked = resolving(monkeypatch, "127.0.0.1")

        found = scored(
            "llm_judge", "c", base_url=f"http://judge.example.com:{port}/v1", model="m"
        )

    assert found.total == pytest.approx(6 / 9)
    assert asked == ["judge.example.com"]
    assert judging.headers[0]["Host"] == f"judge.example.com:{port}"


def test_an_allowed_host_is_allowed_only_on_its_port(monkeypatch):
    monkeypatch.setenv("COHORT_JUDGE_HOSTS", "127.0.0.1:1, [::1]:8000")

    found = scored("llm_judge", "c", base_url="http://127.0.0.1:2/v1", model="m")

    assert found.total is None
    assert "COHORT_JUDGE_HOSTS" in found.errors["it"]


@pytest.mark.parametrize("hosts", ["localhost", "http://localhost:8000", "a:b", ":80"])
def test_hosts_that_cannot_be_read_are_named(hosts, monkeypatch):
    monkeypatch.setenv("COHORT_JUDGE_HOSTS", hosts)

    found = scored("llm_judge", "c", base_url="https://example.com", model="m")

    assert found.total is None
    assert "COHORT_JUDGE_HOSTS" in found.errors["it"]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(code, judging):
    judging.faults = [status(code, Location=judging.url + "/elsewhere")]

    found = scored("llm_judge", "c", base_url=judging.url, model="m")

    assert found.total is None
    assert "redirects (status " in found.errors["it"]
    assert judging.paths == ["/v1/chat/completions"]


def test_no_proxy_of_the_environment_is_used(judging, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:1")

    assert scored("llm_judge", "c", base_url=judging.url, model="m").total is not None


KEY = "sk-4711-hush"


@pytest.fixture
def keyed(judging, monkeypatch) -> Judging:
    monkeypatch.setenv("COHORT_JUDGE_KEY_LAB", KEY)
    monkeypatch.setenv("COHORT_JUDGE_URL_LAB", judging.url)
    return judging


def test_the_key_of_the_environment_is_sent(keyed):
    assert ask(keyed, key_name="LAB") == [SCORE]

    assert keyed.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_without_a_name_no_key_is_sent(keyed):
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
def test_a_key_goes_to_its_own_address_alone(url, goes, monkeypatch):
    monkeypatch.setenv("COHORT_JUDGE_KEY_LAB", KEY)
    monkeypatch.setenv("COHORT_JUDGE_URL_LAB", "https://api.example.com/v1")

    if goes:
        assert find_key("LAB", read_url(url)) == KEY
        return
    with pytest.raises(Refused, match="JUDGE_URL_LAB") as caught:
        find_key("LAB", read_url(url))
    assert KEY not in str(caught.value)


def test_a_key_may_stand_in_a_file(tmp_path, monkeypatch):
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
        ({"COHORT_JUDGE_KEY_LAB": "sk\nX: y"}, "not valid"),
    ],
)
def test_missing_credentials_are_named_before_a_run(
    variables, words, judging, monkeypatch
):
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
def test_no_other_variable_can_be_named(name, judging):
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
def test_an_endpoint_that_tells_the_key_is_not_repeated(fault, keyed, tmp_path):
    keyed.faults = [fault]

    with open_session(tmp_path) as session:
        (found,) = ask(keyed, key_name="LAB", max_tries=1)
        warnings = session.take_warnings()

    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*.jsonl"))
    assert "4711" not in f"{found} {warnings}"
    assert b"4711" not in written
    assert written
