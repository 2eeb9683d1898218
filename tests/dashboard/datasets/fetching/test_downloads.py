"""Downloads from faulty servers: all bytes, or an error."""

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard.datasets.fetching import download, http
from dashboard.datasets.fetching.download import Download, DownloadOptions, RemoteFile
from dashboard.datasets.fetching.http import NotFetched, Token, links_allowlist
from dashboard.jobs.kinds import JobReleased
from tests.dashboard.datasets.fetching.site import (
    Handler,
    Site,
    drip,
    endless,
    file,
    page,
    redirect,
    send,
    status,
    web_site,
)
from tests.trainer.rewards.test_llm_judge_addresses import resolving
from tests.trainer.rewards.test_llm_judge_tls import certificate
from trainer import internet
from trainer.internet import read_link

__all__ = ["certificate"]
BODY = b'{"question": "1 + 1?", "answer": 2}\n' * 10_000


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def site(settings) -> Iterator[Site]:
    with web_site() as site:
        settings.DATASET_HOSTS = site.host
        yield site


class Fetched:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports: list[tuple[int, int, str]] = []
        self.known: list[RemoteFile] = []

    def report(self, num_bytes: int, total: int, remark: str) -> None:
        self.reports.append((num_bytes, total, remark))

    def run(self, url: str, **changes: Any) -> bytes:
        known = changes.pop("known", RemoteFile())
        options = {
            "allowlist": links_allowlist(),
            "token": None,
            "report": self.report,
            **changes,
        }
        Download(
            read_link(url),
            self.path,
            DownloadOptions(**options),
            known=known,
            remember=self.known.append,
        ).run()
        return self.path.read_bytes()


@pytest.fixture
def fetched(tmp_path) -> Fetched:
    return Fetched(tmp_path / "rows")


def test_a_download_reports_its_progress(site, fetched):
    site.pages["/rows.jsonl"] = file(BODY)

    assert fetched.run(site.url("/rows.jsonl?key=1")) == BODY
    assert fetched.reports[-1][:2] == (len(BODY), len(BODY))
    assert site.requests[0][0] == "/rows.jsonl?key=1"
    assert site.requests[0][1]["Accept-Encoding"] == "identity"


def test_a_download_resumes_after_a_lost_connection(site, fetched):
    site.pages["/rows"] = file(BODY, breaks_at=(100_000, 70_000))

    assert fetched.run(site.url("/rows")) == BODY
    assert site.ranges() == ["", "bytes=100000-", "bytes=170000-"]
    assert site.requests[1][1]["If-Range"] == '"one"'
    assert any("Lost the connection" in remark for *_, remark in fetched.reports)


def test_a_retry_resumes_from_the_bytes_on_disk(site, fetched):
    site.pages["/rows"] = file(BODY)
    fetched.path.write_bytes(BODY[:5_000])

    known = RemoteFile(validator='"one"', num_bytes=len(BODY))
    assert fetched.run(site.url("/rows"), known=known) == BODY
    assert site.ranges() == ["bytes=5000-"]


def test_a_changed_file_restarts_the_download(site, fetched):
    site.pages["/rows"] = file(BODY, etag='"two"')
    fetched.path.write_bytes(b"old" * 1_000)

    known = RemoteFile(validator='"one"', num_bytes=9_000)
    assert fetched.run(site.url("/rows"), known=known) == BODY


def test_a_partial_file_that_is_too_long_restarts_the_download(site, fetched):
    site.pages["/rows"] = file(BODY)
    fetched.path.write_bytes(BODY + b"more")

    known = RemoteFile(validator='"one"', num_bytes=len(BODY) + 9)
    assert fetched.run(site.url("/rows"), known=known) == BODY
    assert site.ranges() == [f"bytes={len(BODY) + 4}-", ""]


def test_a_download_without_a_validator_restarts(site, fetched):
    site.pages["/rows"] = file(BODY, etag="W/weak", breaks_at=(100_000,))

    assert fetched.run(site.url("/rows")) == BODY
    assert site.ranges() == ["", ""]


def test_a_download_fails_after_four_lost_connections(site, fetched):
    site.pages["/rows"] = file(BODY, etag="", breaks_at=(100_000,) * 20)

    with pytest.raises(NotFetched, match="4 tries"):
        fetched.run(site.url("/rows"))
    assert len(site.requests) == 4


def test_a_body_shorter_than_its_content_length_fails(site, fetched):
    site.pages["/rows"] = page(BODY[:1_000], Content_Length=2_000)

    with pytest.raises(NotFetched, match="Lost the connection"):
        fetched.run(site.url("/rows"))


def test_a_length_beyond_the_limit_is_refused_at_once(site, fetched):
    site.pages["/rows"] = page(b"x", Content_Length=10**13)

    with pytest.raises(NotFetched, match=r"10,000,000,000,000 bytes"):
        fetched.run(site.url("/rows"))
    assert len(site.requests) == 1


def test_a_body_without_end_is_refused(site, fetched):
    site.pages["/rows"] = endless

    with pytest.raises(NotFetched, match=r"limit is 1,000,000"):
        fetched.run(site.url("/rows"), limit=1_000_000)
    assert not fetched.path.exists()


def test_a_truncated_chunked_body_fails(site, fetched):
    def chunks(handler: Handler) -> None:
        send(handler, 200, b"", Content_Length=None, Transfer_Encoding="chunked")
        handler.wfile.write(b"5\r\nhello\r\nffff\r\nhalf")

    site.pages["/rows"] = chunks

    with pytest.raises(NotFetched, match="Lost the connection"):
        fetched.run(site.url("/rows"))


def test_a_stalled_download_fails(site, fetched, monkeypatch):
    monkeypatch.setattr(download, "STALL_SECONDS", 0.2)
    site.pages["/rows"] = drip(site, BODY, seconds=0.02)

    with pytest.raises(NotFetched, match=r"0\.2 s. 4 tries"):
        fetched.run(site.url("/rows"))


def test_a_download_below_the_minimum_speed_fails(site, fetched, monkeypatch):
    """Each connection makes enough progress to reset the count of failures."""
    monkeypatch.setattr(download, "SLOW_SECONDS", 0.5)
    monkeypatch.setattr(download, "STALL_BYTES", 10)
    breaks = tuple([1_000] * 300)
    served = file(BODY, breaks_at=breaks)

    def slow(handler: Handler) -> None:
        site.over.wait(0.02)
        served(handler)

    site.pages["/rows"] = slow

    with pytest.raises(NotFetched, match="3 MiB"):
        fetched.run(site.url("/rows"))
    assert 1_000 < fetched.path.stat().st_size < 200_000


def test_a_slow_download_above_the_minimum_finishes(site, fetched, monkeypatch):
    monkeypatch.setattr(download, "SLOW_SECONDS", 0.2)
    monkeypatch.setattr(download, "SLOW_BYTES", 2)
    site.pages["/rows"] = drip(site, BODY[:100], seconds=0.005)

    assert fetched.run(site.url("/rows")) == BODY[:100]


def test_a_silent_server_times_out(site, fetched, monkeypatch):
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.1)
    site.pages["/rows"] = drip(site, BODY, seconds=5)

    with pytest.raises(NotFetched, match=r"0\.1 s"):
        fetched.run(site.url("/rows"))


def test_slow_headers_time_out(site, fetched, monkeypatch):
    def headers(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not site.over.wait(0.02):
            handler.wfile.write(b"X: y\r\n")

    monkeypatch.setattr(http, "ANSWER_SECONDS", 0.1)
    site.pages["/rows"] = headers

    with pytest.raises(NotFetched, match=r"0\.1 s"):
        fetched.run(site.url("/rows"))


def test_a_download_times_out(site, fetched):
    site.pages["/rows"] = drip(site, BODY, seconds=0.05)

    with pytest.raises(NotFetched, match="6 hours"):
        fetched.run(site.url("/rows"), until=time.monotonic() + 0.3)


def test_a_stop_interrupts_a_silent_server(site, fetched):
    site.pages["/rows"] = drip(site, BODY, seconds=30)
    began = time.monotonic()

    def stopped(*_: Any) -> None:
        if time.monotonic() > began + 0.3:
            raise JobReleased

    with pytest.raises(JobReleased):
        fetched.run(site.url("/rows"), report=stopped)
    assert time.monotonic() < began + 20  # before its next bytes


def test_redirects_are_followed(site, fetched):
    for number, code in enumerate((301, 302, 303, 307, 308)):
        site.pages[f"/{number}"] = redirect(f"{number + 1}?x={number}", code)
    site.pages["/5"] = file(BODY)

    assert fetched.run(site.url("/0")) == BODY
    assert [path for path, _ in site.requests][-1] == "/5?x=4"


def test_a_sixth_redirect_is_refused(site, fetched):
    site.pages["/0"] = redirect("/0")

    with pytest.raises(NotFetched, match="5 redirects"):
        fetched.run(site.url("/0"))
    assert len(site.requests) == 6


def test_a_redirect_to_a_private_address_or_invalid_url_is_refused(site, fetched):
    private = [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:1/",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "http://localhost/",
        "https://10.0.0.7/",
    ]
    no_link = ["file:///etc/passwd", "gopher://x/", "http://a:b@c/"]
    for match, places in (("COHORT_DATASET_HOSTS", private), ("redirects to", no_link)):
        for to in places:
            site.pages["/rows"] = redirect(to)
            with pytest.raises(NotFetched, match=match):
                fetched.run(site.url("/rows"))


def test_a_token_is_sent_only_to_its_host(site, fetched, settings):
    with web_site() as elsewhere:
        settings.DATASET_HOSTS = f"{site.host},{elsewhere.host}"
        site.pages["/rows"] = redirect("/moved")
        site.pages["/moved"] = redirect(elsewhere.url("/rows"))
        elsewhere.pages["/rows"] = redirect(site.url("/back"))
        site.pages["/back"] = file(BODY)
        token = Token(text="hf_secret", home=read_link(site.url("/")))

        assert fetched.run(site.url("/rows"), token=token) == BODY

        assert [h.get("Authorization") for _, h in elsewhere.requests] == [None]
        assert "hf_secret" not in repr(token)
    with_it = [path for path, h in site.requests if "Authorization" in h]
    assert with_it == ["/rows", "/moved", "/back"]


def test_an_error_shows_the_status_without_the_body(site, fetched):
    for code in (401, 403, 404, 410, 418, 204):
        site.pages["/rows"] = status(code)
        site.requests.clear()

        with pytest.raises(NotFetched) as caught:
            fetched.run(site.url("/rows"))

        assert caught.value.status == code
        assert "secret" not in str(caught.value)
        assert len(site.requests) == 1


def test_an_unavailable_server_is_retried(site, fetched):
    busy = [status(503), status(429, Retry_After="0"), status(502)]

    def page_(handler: Handler) -> None:
        (busy.pop(0) if busy else file(BODY))(handler)

    site.pages["/rows"] = page_

    assert fetched.run(site.url("/rows")) == BODY


def test_a_web_page_is_refused(site, fetched):
    body = b"<html>secret</html>"
    site.pages["/rows.jsonl"] = page(body, Content_Type="text/html; charset=utf-8")

    with pytest.raises(NotFetched, match="web page"):
        fetched.run(site.url("/rows.jsonl"))


def test_an_invalid_http_response_is_not_quoted(site, fetched):
    def greet(handler: Handler) -> None:
        handler.wfile.write(b"-ERR secret of the cache\r\n")

    site.pages["/rows"] = greet

    with pytest.raises(NotFetched, match="web server") as caught:
        fetched.run(site.url("/rows"))
    assert "secret" not in str(caught.value)


def test_an_unreachable_server_fails(fetched, settings):
    settings.DATASET_HOSTS = "127.0.0.1:1"

    with pytest.raises(NotFetched, match=r"127\.0\.0\.1"):
        fetched.run("http://127.0.0.1:1/rows")


def test_an_unresolvable_host_fails(fetched):
    with pytest.raises(NotFetched, match=r"no-such-host\.invalid"):
        fetched.run("https://no-such-host.invalid/rows")


def test_no_proxy_of_the_environment_is_used(site, fetched, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    site.pages["/rows"] = file(BODY)

    assert fetched.run(site.url("/rows")) == BODY


def test_the_checked_address_is_the_one_connected_to(
    site, fetched, settings, monkeypatch
):
    """A second lookup could return another address."""
    port = site.host.partition(":")[2]
    settings.DATASET_HOSTS = f"rows.test:{port}"
    resolved: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        resolved.append(host)
        ip = "127.0.0.1" if len(resolved) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))]

    monkeypatch.setattr(internet.socket, "getaddrinfo", getaddrinfo)
    site.pages["/rows"] = file(BODY)

    assert fetched.run(f"http://rows.test:{port}/rows") == BODY
    assert resolved == ["rows.test"]
    assert site.requests[0][1]["Host"] == f"rows.test:{port}"


def test_the_host_of_a_redirect_is_checked(site, fetched, monkeypatch):
    resolve = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **more: Any) -> list[Any]:
        return resolve("10.0.0.7" if host == "inside.test" else host, port, **more)

    monkeypatch.setattr(internet.socket, "getaddrinfo", getaddrinfo)
    site.pages["/rows"] = redirect("http://inside.test/rows")

    with pytest.raises(NotFetched, match=r"10\.0\.0\.7"):
        fetched.run(site.url("/rows"))


def test_a_slow_file_arrives_over_tls(fetched, settings, certificate, monkeypatch):
    """Short read timeouts lose no part of a TLS record."""
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate)
    trusted = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(internet, "_tls", lambda: trusted)
    monkeypatch.setattr(internet, "_TICK_SECONDS", 0.01)
    with web_site(own) as site:
        resolving(monkeypatch, "127.0.0.1")
        port = site.host.partition(":")[2]
        settings.DATASET_HOSTS = f"judge.test:{port}"
        site.pages["/rows"] = drip(site, BODY[:15], seconds=0.03)
        site.pages["/whole"] = file(BODY)

        assert fetched.run(f"https://judge.test:{port}/rows") == BODY[:15]
        fetched.path.unlink()
        assert fetched.run(f"https://judge.test:{port}/whole") == BODY

        site.pages["/down"] = redirect(f"http://judge.test:{port[:-1]}/")
        with pytest.raises(NotFetched, match="not secure"):
            fetched.run(f"https://judge.test:{port}/down")


def test_an_untrusted_certificate_is_refused(
    fetched, settings, certificate, monkeypatch
):
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate)
    with web_site(own) as site:
        resolving(monkeypatch, "127.0.0.1")
        port = site.host.partition(":")[2]
        settings.DATASET_HOSTS = f"judge.test:{port}"

        with pytest.raises(NotFetched, match=r"certificate of judge\.test"):
            fetched.run(f"https://judge.test:{port}/rows")
        assert site.requests == []
