"""Mail that is sent behind the answer: whoever asks for a new password learns neither
from the time that it takes nor from its failing whether there is such an account."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from smtplib import SMTPException
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port

logger = logging.getLogger(__name__)
_senders = ThreadPoolExecutor(max_workers=2, thread_name_prefix="letters")


def send_behind(send: Callable[[], None]) -> None:
    _senders.submit(copy_context().run, _send, send)


def _send(send: Callable[[], None]) -> None:
    try:
        send()
    except (SMTPException, OSError) as error:
        logger.error("A letter was not sent: %s.", type(error).__name__)
    except Exception:
        logger.exception("A letter was not sent.")


def link(request: HttpRequest, path: str) -> str:
    """For a letter: a Host that anybody may send must not lead its reader elsewhere.

    Nor to its reader's own machine: this server's loopback names are allowed always.
    """
    begin = settings.LINKS_BEGIN
    if not begin and split_domain_port(request.get_host())[0] in settings.ADDED_HOSTS:
        begin = f"{request.scheme}://{settings.ALLOWED_HOSTS[0]}"
    if not begin:
        return request.build_absolute_uri(path)
    parts = urlsplit(path)
    return f"{begin}{parts._replace(scheme='', netloc='').geturl()}"
