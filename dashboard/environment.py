"""The only module that reads the environment.

DATABASE_URL, REDIS_URL: addresses of servers; unset, Cohort starts its own inside
COHORT_DATA. COHORT_DATA: where everything of this installation lives.
COHORT_SECRET_KEY: unset, one is made and kept in COHORT_DATA. COHORT_ALLOWED_HOSTS:
comma-separated; this machine's own names are always added, for health checks.
COHORT_PORT: where the pages are served. COHORT_JUDGE_…, for models
that judge, are read where they are asked: trainer/rewards/model_judge/keys.py.
COHORT_DATASET_HOSTS: hosts with their ports, comma-separated, that datasets may be
fetched from though they are not public. HF_ENDPOINT, HF_TOKEN: the hub, and what a
worker signs in there with. COHORT_EMAIL_URL: the mail server, read by mail.py; unset,
no mail is sent. COHORT_EMAIL_FROM: whom mail comes from. COHORT_URL: where people reach
the pages, for links in mail and webhooks and, by https, whose forms are taken.
COHORT_WEBHOOK_HOSTS: hosts with their ports, comma-separated, that webhooks may be sent
to though they are not public.
COHORT_OIDC_URL, …_ID, …_SECRET, …_NAME, COHORT_GITHUB_ID, …_SECRET, COHORT_GOOGLE_ID,
…_SECRET: where else people may have an account to sign in by.
COHORT_WORKER_CLASS: which runs a training worker takes. COHORT_HANG_SECONDS: after so
long without a sign of life a trainer is ended and its run resumed. DATABASE_PASSWORD:
where DATABASE_URL has none.
COHORT_LOG_FORMAT: text, for a terminal, or json, an object a line. COHORT_PROXY_IDS:
yes, where a proxy in front sets X-Request-ID itself. COHORT_METRICS_TOKEN: what
/metrics and the details of /readyz are opened by from elsewhere.
COHORT_LEAST_FREE_BYTES: /readyz warns below it. COHORT_SENTRY_DSN: where faults are
reported to. OTEL_EXPORTER_OTLP_ENDPOINT: where spans are sent; OpenTelemetry reads its
other variables itself.

Each may be given as a file, too: NAME_FILE is the path of one that holds the value of
NAME, so that no secret stands in a list of processes or of containers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from trainer.json_lines import LOG_FORMATS

ROOT = Path(__file__).resolve().parent.parent
SHORTEST_TOKEN = 16
WORKER_CLASSES = ("any", "cpu", "gpu", "gpus")
# A container's health check, the runbook and Prometheus beside us ask by these.
OWN_HOSTS = ("localhost", "127.0.0.1", "[::1]")


SECRETS = (
    "DATABASE_URL",
    "DATABASE_PASSWORD",
    "REDIS_URL",
    "COHORT_SECRET_KEY",
    "COHORT_EMAIL_URL",
    "COHORT_OIDC_SECRET",
    "COHORT_GITHUB_SECRET",
    "COHORT_GOOGLE_SECRET",
    "COHORT_METRICS_TOKEN",
    "COHORT_SENTRY_DSN",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SignInProvider:
    """Somewhere that people have an account, with what Cohort is called there."""

    key: str
    name: str
    client_id: str
    secret: str = field(repr=False)
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observing:
    """How operators see what goes on."""

    log_format: str
    has_proxy_ids: bool
    metrics_token: str = field(repr=False)
    least_free_bytes: int
    sentry_dsn: str = field(repr=False)
    otlp_endpoint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    database_url: str | None = field(repr=False)
    database_password: str = field(repr=False)
    redis_url: str | None = field(repr=False)
    data: Path
    secret_key: str | None = field(repr=False)
    allowed_hosts: tuple[str, ...]  # those that people use first
    added_hosts: tuple[str, ...]  # of these, what they do not use
    port: int
    dataset_hosts: str
    hub_endpoint: str
    hub_token: str = field(repr=False)
    worker_class: str
    hang_seconds: int
    email_url: str = field(repr=False)
    email_from: str
    url: str
    is_url_given: bool
    trusted_origins: tuple[str, ...]  # whose forms are taken, as browsers write them
    webhook_hosts: str
    sign_in_providers: tuple[SignInProvider, ...]
    observing: Observing


def read_environment() -> Environment:
    hosts = _read("COHORT_ALLOWED_HOSTS") or ",".join(OWN_HOSTS)
    port = _read("COHORT_PORT", "8000")
    if not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ValueError(
            f"COHORT_PORT must be a port between 1 and 65535; got {port!r}."
        )
    worker_class = _read("COHORT_WORKER_CLASS") or "any"
    if worker_class not in WORKER_CLASSES:
        raise ValueError(
            f"COHORT_WORKER_CLASS must be one of {', '.join(WORKER_CLASSES)}; got "
            f"{worker_class!r}."
        )
    email_url = _read("COHORT_EMAIL_URL")
    named = tuple(h.strip() for h in hosts.split(",") if h.strip())
    others = tuple(host for host in named if host not in OWN_HOSTS)
    # Beside another host our own are for health checks, even where they are named.
    named = others or named
    added = tuple(host for host in OWN_HOSTS if host not in named)
    _check_links(email_url, named)
    return Environment(
        database_url=_read("DATABASE_URL") or None,
        database_password=_read("DATABASE_PASSWORD"),
        redis_url=_read("REDIS_URL") or None,
        data=Path(_read("COHORT_DATA") or ROOT / ".cohort").resolve(),
        secret_key=_read("COHORT_SECRET_KEY") or None,
        allowed_hosts=(*named, *added),
        added_hosts=added,
        port=int(port),
        dataset_hosts=_read("COHORT_DATASET_HOSTS"),
        hub_endpoint=_read("HF_ENDPOINT") or "https://huggingface.co",
        hub_token=_read("HF_TOKEN"),
        worker_class=worker_class,
        hang_seconds=_read_hang_seconds(),
        email_url=email_url,
        email_from=_read("COHORT_EMAIL_FROM") or "cohort@localhost",
        url=(_read("COHORT_URL") or f"http://localhost:{port}").rstrip("/"),
        is_url_given=bool(_read("COHORT_URL")),
        trusted_origins=_read_trusted_origins(),
        webhook_hosts=_read("COHORT_WEBHOOK_HOSTS"),
        sign_in_providers=_read_providers(),
        observing=_read_observing(),
    )


def _read(name: str, default: str = "") -> str:
    """A variable's value, or that of the file that NAME_FILE names.

    ValueError where both are given, or the file cannot be read or holds nothing.
    """
    path = os.environ.get(f"{name}_FILE", "")
    if not path:
        return os.environ.get(name, default).strip()
    if os.environ.get(name):
        raise ValueError(f"{name} and {name}_FILE are both set; unset one of them.")
    try:
        value = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}_FILE: {path} cannot be read: {error}") from error
    if not value:
        raise ValueError(f"{name}_FILE: {path} is empty; write the value of {name}.")
    return value


def _read_hang_seconds() -> int:
    seconds = _read("COHORT_HANG_SECONDS") or "1800"
    if not seconds.isdigit() or int(seconds) < 1:
        raise ValueError(
            "COHORT_HANG_SECONDS must be a whole number of seconds, 1 or more; got "
            f"{seconds!r}."
        )
    return int(seconds)


def _read_observing() -> Observing:
    log_format = _read("COHORT_LOG_FORMAT") or "text"
    if log_format not in LOG_FORMATS:
        raise ValueError(
            f"COHORT_LOG_FORMAT must be one of {', '.join(LOG_FORMATS)}; got "
            f"{log_format!r}."
        )
    least = _read("COHORT_LEAST_FREE_BYTES") or str(2 * 2**30)
    if not least.isdigit():
        raise ValueError(
            f"COHORT_LEAST_FREE_BYTES must be a whole number of bytes; got {least!r}."
        )
    token = _read("COHORT_METRICS_TOKEN")
    if token and len(token) < SHORTEST_TOKEN:
        raise ValueError(
            f"COHORT_METRICS_TOKEN must have {SHORTEST_TOKEN} letters or more, so that "
            f"nobody guesses it; got {len(token)}. Make one: openssl rand -hex 32"
        )
    return Observing(
        log_format=log_format,
        has_proxy_ids=_read("COHORT_PROXY_IDS") == "yes",
        metrics_token=token,
        least_free_bytes=int(least),
        sentry_dsn=_read("COHORT_SENTRY_DSN"),
        otlp_endpoint=_read("OTEL_EXPORTER_OTLP_ENDPOINT"),
    )


def _read_trusted_origins() -> tuple[str, ...]:
    """
    >>> _read_trusted_origins()  # where COHORT_URL is https://Cohort.example.org:443/
    ("https://cohort.example.org",)
    """
    url = urlsplit(_read("COHORT_URL").lower())
    if url.scheme != "https" or not url.netloc:
        return ()
    return (f"https://{url.netloc.removesuffix(':443')}",)


def _check_links(email_url: str, hosts: Iterable[str]) -> None:
    """Links in mail would otherwise lead wherever whoever asks for it says."""
    wide = [host for host in hosts if host.startswith(("*", "."))]
    if email_url and wide and not _read("COHORT_URL"):
        raise ValueError(
            f"COHORT_ALLOWED_HOSTS allows any host by {wide[0]!r}, so links in mail "
            "need COHORT_URL: set it to the address where people reach the pages, or "
            "name the hosts."
        )


def _read_providers() -> tuple[SignInProvider, ...]:
    oidc = _read("COHORT_OIDC_NAME") or "single sign-on"
    named = {"oidc": oidc, "github": "GitHub", "google": "Google"}
    found = [_read_provider(key, name) for key, name in named.items()]
    return tuple(each for each in found if each is not None)


def _read_provider(key: str, name: str) -> SignInProvider | None:
    names = [f"COHORT_{key.upper()}_{part}" for part in ("ID", "SECRET")]
    names += ["COHORT_OIDC_URL"] * (key == "oidc")
    given = {each: _read(each) for each in names}
    if not any(given.values()):
        return None
    if missing := [each for each, value in given.items() if not value]:
        raise ValueError(
            f"To sign in by {name}, {', '.join(names)} are needed; "
            f"{', '.join(missing)} is not set."
        )
    client_id, secret, *url = given.values()
    return SignInProvider(
        key=key, name=name, client_id=client_id, secret=secret, url="".join(url)
    )


def visible_gpus() -> str | None:
    """CUDA's own list of the GPUs that a process may use; None: all of them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


def hub_variables() -> dict[str, str]:
    """What a process of ours needs to find models as a worker does."""
    names = ("HOME", *HUB_VARIABLES, *PROXIES, *map(str.lower, PROXIES))
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return kept | hub_token_path(os.environ)


def hub_token_path(environment: Mapping[str, str]) -> dict[str, str]:
    """HF_TOKEN_FILE by the name that the hub's own library knows."""
    path = environment.get("HF_TOKEN_FILE")
    return {"HF_TOKEN_PATH": path} if path else {}
