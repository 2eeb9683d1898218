"""Mail settings from one URL, such as smtp://name:key@host:587."""

from __future__ import annotations

from dataclasses import dataclass, field
from smtplib import (
    SMTPAuthenticationError,
    SMTPException,
    SMTPRecipientsRefused,
    SMTPResponseException,
    SMTPSenderRefused,
)
from urllib.parse import unquote, urlsplit

from trainer.internet import why_unreachable

# The usual ports, with how they are made safe.
_PORTS = {"smtp": 587, "smtps": 465, "smtp+plain": 25}


def why_not_mailed(error: SMTPException | OSError) -> str:
    """Explain what the mail server did, and what to do: a sentence or two."""
    match error:
        case SMTPAuthenticationError():
            return (
                "The mail server rejected the username and password. The operator "
                "must fix COHORT_EMAIL_URL."
            )
        case SMTPRecipientsRefused():
            return "The mail server rejected this address. Check the address."
        case SMTPSenderRefused():
            return (
                "The mail server rejected the sender address. The operator must "
                "fix COHORT_EMAIL_FROM."
            )
        case SMTPResponseException():
            return (
                f"The mail server rejected the e-mail (code {error.smtp_code}). Try "
                "again later."
            )
        case SMTPException():
            return "The mail server closed the connection. Try again later."
    return (
        f"The mail server cannot be reached: {why_unreachable(error)}. The "
        "operator must check COHORT_EMAIL_URL."
    )


@dataclass(frozen=True, kw_only=True)
class MailServer:
    host: str
    port: int
    username: str
    password: str = field(repr=False)
    starts_tls: bool
    is_tls: bool


def read_mail_url(url: str) -> MailServer | None:
    """smtp:// uses STARTTLS, smtps:// TLS from the start, smtp+plain:// neither.

    ValueError, without the password, for other URLs.
    """
    if not url:
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in _PORTS or not host:
        raise ValueError(
            "COHORT_EMAIL_URL is invalid. Write smtp://name:password@host:587 "
            "(STARTTLS), smtps://…:465 (TLS) or smtp+plain://host:25 (no "
            "encryption), with special characters in the password as %XX."
        )
    return MailServer(
        host=host,
        port=port or _PORTS[parts.scheme],
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        starts_tls=parts.scheme == "smtp",
        is_tls=parts.scheme == "smtps",
    )
