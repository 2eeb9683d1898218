"""Links: parsed as a URL or a Hub dataset, or refused."""

import socket
from typing import Any

import pytest

from dashboard.datasets.fetching.http import links_allowlist
from dashboard.datasets.fetching.links import HubLink, Link, read
from dashboard.project.errors import code_of
from trainer import internet
from trainer.internet import Refused, read_link, resolve

# Every spelling of an address that is not the internet's.
HOSTILE = [
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0x0.0x0.0x1",
    "0177.0.0.1", "017700000001", "00000177.1", "0", "0.0", "0x0",
    "10.0.0.7", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1",
    "100.64.0.1", "100.100.100.200", "100.127.255.255",
    "169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376",
    "168.63.129.16", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "192.88.99.1",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "[::]", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[::ffff:10.0.0.7]", "[::ffff:a9fe:a9fe]", "[::ffff:0:127.0.0.1]",
    "[::127.0.0.1]", "[::a9fe:a9fe]", "[fe80::1]", "[fe80::1%25lo]", "[fec0::1]",
    "[fc00::1]", "[fd00:ec2::254]", "[ff02::1]", "[100::1]",
    "[64:ff9b::7f00:1]", "[64:ff9b::169.254.169.254]", "[64:ff9b:1::a00:7]",
    "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2002:a00:7::1]",
    "[2001:0:4136:e378::1]", "[2001:db8::1]", "[3fff::1]", "[2001:10::1]",
]  # fmt: skip


def code_for(url: str, **more: Any) -> str:
    """Of the error; "invalid" without a code, "" where the link is accepted."""
    try:
        read(url, **more)
    except ValueError as error:
        return code_of(error) or "invalid"
    return ""


def test_a_private_address_in_any_notation_is_refused():
    urls = [f"http://{host}/rows.jsonl" for host in HOSTILE]

    assert {code_for(url) for url in urls} <= {"datasets.host_not_allowed", "invalid"}


def test_other_ports_are_for_hosts_that_are_allowed():
    for scheme, port in (("https", 22), ("http", 6379), ("http", 443), ("http", 8080)):
        with pytest.raises(ValueError, match=f"example.com:{port}"):
            read(f"{scheme}://example.com:{port}/rows.jsonl")


def test_an_invalid_link_is_refused():
    urls = [
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "ftp://example.com/rows.jsonl",
        "s3://bucket/rows.jsonl",
        "https://",
        "https://name:secret@example.com/rows.jsonl",
        "https://example.com@127.0.0.1/rows.jsonl",
        "https://exa mple.com/rows.jsonl",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/x\r\nHost: other",
        "https://①②⑦.⓪.⓪.①/",
        "https://[::1/x",
        "https://example.com:99999/x",
        "rows.jsonl",
        "../../etc/passwd",
        "owner/name/more",
        "owner/..",
        "",
    ]

    assert [url for url in urls if not code_for(url)] == []


def test_a_name_is_refused_by_what_it_resolves_to(monkeypatch):
    def getaddrinfo(name: str, port: int, **_: Any) -> list[Any]:
        ip = "169.254.169.254" if name == "metadata" else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))]

    monkeypatch.setattr(internet.socket, "getaddrinfo", getaddrinfo)

    for host in ("localhost", "LOCALHOST", "localhost.", "metadata"):
        with pytest.raises(Refused, match="public address"):
            resolve(read_link(f"http://{host}/rows.jsonl"), links_allowlist())


def test_a_name_is_refused_when_one_of_its_addresses_is_private(monkeypatch):
    kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [(*kind, ("8.8.8.8", 443)), (*kind, ("10.0.0.7", 443))]
    monkeypatch.setattr(internet.socket, "getaddrinfo", lambda *_, **__: found)

    with pytest.raises(Refused, match=r"10\.0\.0\.7"):
        resolve(read_link("https://rows.example.com/x"), links_allowlist())


def test_an_allowed_private_host_is_allowed_on_its_port_only(settings):
    settings.DATASET_HOSTS = "10.0.0.7:8080, store.lan:80"

    assert read("http://10.0.0.7:8080/rows.jsonl") == Link(
        url="http://10.0.0.7:8080/rows.jsonl"
    )
    with pytest.raises(ValueError, match=r"10\.0\.0\.7:80 "):
        read("http://10.0.0.7/rows.jsonl")


def test_an_invalid_host_allowlist_is_reported(settings):
    settings.DATASET_HOSTS = "store.lan"

    with pytest.raises(ValueError, match=r"'store.lan'"):
        read("https://example.com/rows.jsonl")


def test_a_link_is_parsed_as_a_url_or_hub_dataset():
    leads_to = {
        "openai/gsm8k": HubLink(dataset="openai/gsm8k"),
        " openai/gsm8k@v1.0 ": HubLink(dataset="openai/gsm8k", revision="v1.0"),
        "hf://datasets/a/b": HubLink(dataset="a/b"),
        "hf://datasets/a/b@refs%2Fpr%2F1/data/x.jsonl": HubLink(
            dataset="a/b", revision="refs/pr/1", part="data/x.jsonl"
        ),
        "https://huggingface.co/datasets/a/b": HubLink(dataset="a/b"),
        "https://hf.co/datasets/a/b/": HubLink(dataset="a/b"),
        "https://huggingface.co/datasets/a/b/tree/dev/data": HubLink(
            dataset="a/b", revision="dev"
        ),
        "https://huggingface.co/datasets/a/b/blob/main/data/train.jsonl": HubLink(
            dataset="a/b", revision="main", part="data/train.jsonl"
        ),
        "https://huggingface.co/datasets/a/b/resolve/refs%2Fconvert%2Fparquet/"
        "main/test/0000.parquet?download=true": HubLink(
            dataset="a/b",
            revision="refs/convert/parquet",
            part="main/test/0000.parquet",
        ),
        "https://huggingface.co/datasets/a/b/viewer/main/train": HubLink(
            dataset="a/b", part="main/train"
        ),
        "https://example.com/rows.jsonl.gz?X-Signature=abc#top": Link(
            url="https://example.com/rows.jsonl.gz?X-Signature=abc"
        ),
    }

    assert {text: read(text) for text in leads_to} == leads_to


def test_a_link_is_shown_without_its_query():
    link = Link(url="https://example.com/a%20b/rows%20one.jsonl?token=abc")

    assert link.shown == "https://example.com/a%20b/rows%20one.jsonl?…"
    assert link.filename == "rows one.jsonl"


def test_an_invalid_revision_is_refused():
    url = "https://example.com/rows.jsonl"
    assert code_for(url, revision="main") == "datasets.not_a_hub_dataset"
    for revision in ("a b", "../main", "x" * 300, "-x"):
        assert code_for("a/b", revision=revision) == "datasets.invalid_revision"
