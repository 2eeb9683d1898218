"""Large files are uploaded in parts; an interrupted upload resumes."""

import gzip
from typing import Any

import pytest

from cohort import Refused, Unreachable
from cohort.api import datasets
from cohort.http import Server


@pytest.fixture(autouse=True)
def small_parts(monkeypatch) -> None:
    monkeypatch.setattr(datasets, "PART_BYTES", 300)


def test_a_push_resumes_after_a_lost_response(client, rows, monkeypatch):
    size = rows.stat().st_size
    sent: list[tuple[int, int | None]] = []
    real = Server.send
    breaks = iter([False, False, False, True])

    def send(self: Server, method: str, path: str, *rest: Any, **options: Any) -> Any:
        answer = real(self, method, path, *rest, **options)
        if method == "PUT" and next(breaks, False):
            raise Unreachable("Lost response.")
        return answer

    monkeypatch.setattr(Server, "send", send)
    with pytest.raises(Unreachable):
        client.datasets.push(rows)
    client.retries = 1

    version = client.datasets.push(rows, on_upload=lambda *at: sent.append(at))

    assert (version.dataset, version.num_rows) == ("sums", 40)
    assert sent[0] == (1_200, size)  # four parts, one without a response
    assert sent[-1] == (size, size)
    rows.write_text(rows.read_text() * 2)
    assert client.datasets.push(rows, dataset="sums").number == 2


def test_an_invalid_row_is_reported_with_its_line(client, rows, tmp_path):
    packed = tmp_path / "sums.jsonl.gz"
    packed.write_bytes(gzip.compress(rows.read_bytes() + b'{"question": 1\n'))

    with pytest.raises(Refused) as refused:
        client.datasets.push(packed)

    errors = refused.value.problem["errors"]
    assert "Line 41" in errors[0]["message"]
