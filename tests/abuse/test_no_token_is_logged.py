"""Credentials are not logged."""

import logging
import urllib.request
from pathlib import Path

import pytest

from dashboard.accounts.services import create_sign_in_link
from dashboard.local.supervisor import web
from dashboard.observability.logging import JsonLine

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.django_db(transaction=True)


def test_sign_in_links_are_not_logged(live_app, alice, web_processes):
    token = create_sign_in_link(alice)

    with urllib.request.urlopen(f"{live_app}/sign-in/{token}/") as page:  # noqa: S310 - loopback
        assert page.status == 200

    log = web_processes.log.read_text()
    assert token not in log


def test_web_processes_have_no_access_log(tmp_path):
    image = (ROOT / "docker/web.Dockerfile").read_text()

    assert "--no-access-log" in web(data=tmp_path, port=1).arguments
    assert '"uvicorn"' in image
    assert "--no-access-log" in image


@pytest.mark.parametrize("page", ["public", "sign-in"])
def test_a_failed_request_is_logged_without_its_token(page):
    values = ("Internal Server Error", f"/{page}/{'t' * 43}/")
    record = logging.LogRecord("django.request", 40, "", 0, "%s: %s", values, None)

    # pytest has handlers of its own here, which write to no log.
    own = [one for one in logging.getLogger().handlers if one.name == "stderr"]
    assert len(own) == 1
    shown = [own[0].format(record), JsonLine().as_fields(record)["message"]]

    for text in shown:
        assert str(text).endswith(f"Internal Server Error: /{page}/…/")
