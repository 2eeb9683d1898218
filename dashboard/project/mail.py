"""How mail leaves: one address in the environment, such as smtp://name:key@host:587."""

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
    """What the mail server did, and what to do: a sentence or two."""
    match error:
        case SMTPAuthenticationError():
            return (
                "The mail server does not take this server's name and password. An "
                "administrator corrects COHORT_EMAIL_URL."
            )
        case SMTPRecipientsRefused():
            return "The mail server does not take this address. Correct the address."
        case SMTPSenderRefused():
            return (
                "The mail server does not take the sender's address. An administrator "
                "corrects COHORT_EMAIL_FROM."
            )
        case SMTPResponseException():
            return f"The mail server refused it (code {error.smtp_code}). Try later."
        case SMTPException():
            return "The mail server ended the exchange. Try again later."
    return (
        f"The mail server could not be reached: {why_unreachable(error)}. An "
        "administrator sets it in COHORT_EMAIL_URL."
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
    """smtp:// asks for STARTTLS, smtps:// is TLS from the start, smtp+plain:// neither.

    ValueError, without the password, where it is none of them.
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
            "COHORT_EMAIL_URL cannot be read. Write smtp://name:password@host:587 "
            "(STARTTLS), smtps://…:465 (TLS) or smtp+plain://host:25 (neither), with "
            "special characters of the password as %XX."
        )
    return MailServer(
        host=host,
        port=port or _PORTS[parts.scheme],
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        starts_tls=parts.scheme == "smtp",
        is_tls=parts.scheme == "smtps",
    )
