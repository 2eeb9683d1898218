"""A webhook's message: signed JSON, posted to an address that was looked at first."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import time
from socket import AI_NUMERICHOST
from typing import Any

from django.conf import settings
from django.utils.crypto import salted_hmac

from dashboard.alerts.models import Channel
from trainer.internet import (
    Connection,
    Gate,
    Refused,
    Target,
    read_hosts,
    read_link,
    resolve,
    why_unreachable,
)

VARIABLE = "COHORT_WEBHOOK_HOSTS"
TIMEOUT_SECONDS = 10.0


class NotSent(Exception):
    """The text says why; it names neither the address's path nor what was answered."""


def webhook_gate() -> Gate:
    """Raises Refused where the variable cannot be read."""
    return Gate(
        asks="A webhook is sent",
        variable=VARIABLE,
        allowed=read_hosts(settings.WEBHOOK_HOSTS, VARIABLE),
    )


def read_address(url: str) -> Target:
    """ValueError, with what to do, where nothing may be sent there.

    What a name resolves to is looked at when it is sent to: it may change.
    """
    target = read_link(url)
    try:
        resolve(target, webhook_gate(), flags=AI_NUMERICHOST)
    except Refused as error:
        raise ValueError(str(error)) from None
    except OSError:
        return target  # a name
    return target


def signing_secret(channel: Channel) -> str:
    """Follows from the server's secret key and the channel's nonce: stored nowhere."""
    salt = "dashboard.alerts.webhook"
    return (
        "whsec_" + salted_hmac(salt, str(channel.nonce), algorithm="sha256").hexdigest()
    )


def sign(secret: str, timestamp: int, body: bytes) -> str:
    """v1=HMAC-SHA256(secret, "<timestamp>.<body>") in hex.

    The timestamp is signed too, so a receiver can refuse what is sent again later.
    """
    signed = f"{timestamp}.".encode() + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def post(channel: Channel, delivery_id: str, message: dict[str, Any]) -> str:
    """What came of it, such as "answered 204". Raises NotSent."""
    body = json.dumps(message, allow_nan=False).encode()
    timestamp = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Cohort",
        "Cohort-Delivery": delivery_id,
        "Cohort-Timestamp": str(timestamp),
        "Cohort-Signature": sign(signing_secret(channel), timestamp, body),
    }
    try:
        target = read_address(channel.address)
        status = _exchange(target, body, headers)
    except (Refused, ValueError) as error:
        raise NotSent(str(error)) from None
    except TimeoutError:
        raise NotSent(f"No answer within {TIMEOUT_SECONDS:.0f} s.") from None
    except (OSError, http.client.HTTPException) as error:
        said = f"It could not be reached: {why_unreachable(error)}."
        raise NotSent(said) from None
    if 300 <= status < 400:
        raise NotSent(f"It answered {status}; a redirect is not followed.")
    if not 200 <= status < 300:
        raise NotSent(f"It answered {status}.")
    return f"answered {status}"


def _exchange(target: Target, body: bytes, headers: dict[str, str]) -> int:
    connection = Connection(target, webhook_gate())
    connection.deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        connection.request("POST", target.path, body=body, headers=headers)
        # The status alone is read: a body could tell of what is not ours to see.
        return connection.getresponse().status
    finally:
        connection.close()
