"""How mail leaves: one address in the environment, such as smtp://name:key@host:587."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

# The usual ports, with how they are made safe.
_PORTS = {"smtp": 587, "smtps": 465, "smtp+plain": 25}


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
