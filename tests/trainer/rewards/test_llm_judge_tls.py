"""The certificate is the host's by name, though an address is connected to."""

import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.rewards.judge_server import Judging, judge_server, slow
from tests.trainer.rewards.test_llm_judge_addresses import resolving
from tests.trainer.rewards.test_llm_judge_faults import SCORE, ask
from trainer import internet
from trainer.rewards import session

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificate"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A file with a key and the certificate of judge.test."""
    folder = tmp_path_factory.mktemp("tls")
    openssl = shutil.which("openssl")
    assert openssl is not None
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1",
            "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=judge.test",
            "-addext", "subjectAltName=DNS:judge.test", "-keyout", key,
            "-out", certificate,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    certificate.write_text(certificate.read_text() + key.read_text())
    return certificate


@pytest.fixture
def judging(certificate, monkeypatch) -> Iterator[Judging]:
    monkeypatch.setattr(session, "_current", session.Session())
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate)
    with judge_server(own) as server:
        resolving(monkeypatch, "127.0.0.1")
        name(server, "judge.test", monkeypatch)
        yield server


def name(server: Judging, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = server.url.split("/")[2].rpartition(":")[2]
    server.url = f"https://{host}:{port}/v1"
    monkeypatch.setenv("COHORT_JUDGE_HOSTS", f"{host}:{port}")


@pytest.fixture
def trusted(certificate, monkeypatch) -> None:
    context = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(internet, "_tls", lambda: context)


def test_a_trusted_host_is_asked(judging, trusted):
    assert ask(judging) == [SCORE]


def test_other_hosts_are_refused(judging):
    (found,) = ask(judging)

    assert "certificate of judge" in found
    assert judging.asked == []


def test_a_certificate_of_another_name_is_not_taken(judging, trusted, monkeypatch):
    name(judging, "other.test", monkeypatch)

    (found,) = ask(judging)

    assert "certificate of other" in found
    assert judging.asked == []


def test_the_end_of_a_run_ends_what_is_asked_over_tls(judging, trusted, tmp_path):
    judging.faults = [slow(60)]
    found: list[Any] = []
    with session.open_session(tmp_path):
        caller = threading.Thread(
            target=lambda: found.extend(ask(judging, timeout_seconds=60))
        )
        caller.start()
        while not judging.asked:
            time.sleep(0.005)
        begin = time.monotonic()

    caller.join()
    assert time.monotonic() - begin < 30
    assert isinstance(found[0], str)
