"""Waiting until pages are served."""

from __future__ import annotations

import http.client
import time
from http import HTTPStatus

from dashboard.local.faults import LocalFault
from dashboard.local.folders import tail
from dashboard.local.processes import Service

START_SECONDS = 60


def wait_until_served(web: Service, *, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if web.child is not None and web.child.poll() is not None:
            break
        if _is_ready(port):
            return
        time.sleep(0.1)
    raise LocalFault(
        f"The web process did not begin to serve port {port}. Its log, {web.log}, "
        f"ends:\n{tail(web.log)}"
    )


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
