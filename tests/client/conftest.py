from collections.abc import Iterator

import pytest

from cohort import delivery
from cohort import delivery as sending
from cohort.http import Server
from tests.client.server import FakeServer, serve


@pytest.fixture(autouse=True)
def clean_login(monkeypatch, tmp_path) -> None:
    """No login of this machine's user, and no wait between retries."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("COHORT_URL", raising=False)
    monkeypatch.delenv("COHORT_TOKEN", raising=False)
    monkeypatch.setattr(sending, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(sending, "LONGEST_RETRY", 0.05)
    monkeypatch.setattr(sending, "GATHER_SECONDS", 0.0)
    assert delivery.BATCH_BYTES == 2**20


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer()


@pytest.fixture
def server(fake) -> Iterator[Server]:
    with serve(fake) as address:
        yield address
