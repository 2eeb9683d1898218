"""A download that fails midway is not mistaken for a complete file."""

import http.client
import urllib.request

import pytest
from django.conf import settings

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from tests.dashboard.completions.factories import store_dataset

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NUM_ROWS = 200


@pytest.fixture
def address(team) -> str:
    """URL of a 4 MB file whose last row is missing."""
    rows = (Row(prompt=f"{i} " + "x" * 20_000, answer="1") for i in range(NUM_ROWS))
    version: DatasetVersion = store_dataset(team, rows, name="large")
    version.rows.filter(position=NUM_ROWS - 1).update(position=NUM_ROWS)
    return f"/{team.slug}/datasets/{version.dataset_id}/download"


def test_an_incomplete_download_fails_and_is_logged_once(
    address, page, live_app, alice_client, web_processes
):
    cookie = alice_client.cookies[settings.SESSION_COOKIE_NAME].value
    before = len(web_processes.log.read_text())
    request = urllib.request.Request(  # noqa: S310 - loopback
        live_app + address, headers={"Cookie": f"cohort_session={cookie}"}
    )

    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - loopback
        assert answer.status == 200
        with pytest.raises(http.client.IncompleteRead):
            answer.read()

    log = web_processes.log.read_text()[before:]
    assert log.count("Traceback") == 1, log
    page.goto("/")
    with page.expect_download() as started:
        page.evaluate(
            "(at) => { const a = document.createElement('a'); a.href = at;"
            " a.download = ''; document.body.append(a); a.click(); }",
            address,
        )
    assert started.value.failure()
