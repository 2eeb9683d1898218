"""The only module that reads the environment.

DATABASE_URL, REDIS_URL: addresses of servers; unset, Cohort starts its own inside
COHORT_DATA. COHORT_DATA: where everything of this installation lives.
COHORT_SECRET_KEY: unset, one is made and kept in COHORT_DATA. COHORT_ALLOWED_HOSTS:
comma-separated. COHORT_PORT: where the pages are served. COHORT_JUDGE_…, for models
that judge, are read where they are asked: trainer/rewards/model_judge/keys.py.
COHORT_DATASET_HOSTS: hosts with their ports, comma-separated, that datasets may be
fetched from though they are not public. HF_ENDPOINT, HF_TOKEN: the hub, and what a
worker signs in there with. COHORT_EMAIL_URL: the mail server, read by mail.py; unset,
no mail is sent. COHORT_EMAIL_FROM: whom mail comes from. COHORT_URL: where people reach
the pages, for links in mail and webhooks. COHORT_WEBHOOK_HOSTS: hosts with their ports,
comma-separated, that webhooks may be sent to though they are not public.
COHORT_OIDC_URL, …_ID, …_SECRET, …_NAME, COHORT_GITHUB_ID, …_SECRET, COHORT_GOOGLE_ID,
…_SECRET: where else people may have an account to sign in by.
COHORT_WORKER_CLASS: which runs a training worker takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKER_CLASSES = ("any", "cpu", "gpu", "gpus")


@dataclass(frozen=True, kw_only=True, slots=True)
class SignInProvider:
    """Somewhere that people have an account, with what Cohort is called there."""

    key: str
    name: str
    client_id: str
    secret: str = field(repr=False)
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    database_url: str | None
    redis_url: str | None
    data: Path
    secret_key: str | None
    allowed_hosts: tuple[str, ...]
    port: int
    dataset_hosts: str
    hub_endpoint: str
    hub_token: str = field(repr=False)
    worker_class: str
    email_url: str = field(repr=False)
    email_from: str
    url: str
    is_url_given: bool
    webhook_hosts: str
    sign_in_providers: tuple[SignInProvider, ...]


def read_environment() -> Environment:
    hosts = os.environ.get("COHORT_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
    port = os.environ.get("COHORT_PORT", "8000")
    if not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ValueError(
            f"COHORT_PORT must be a port between 1 and 65535; got {port!r}."
        )
    worker_class = os.environ.get("COHORT_WORKER_CLASS") or "any"
    if worker_class not in WORKER_CLASSES:
        raise ValueError(
            f"COHORT_WORKER_CLASS must be one of {', '.join(WORKER_CLASSES)}; got "
            f"{worker_class!r}."
        )
    email_url = os.environ.get("COHORT_EMAIL_URL", "").strip()
    allowed = tuple(h.strip() for h in hosts.split(",") if h.strip())
    _check_links(email_url, allowed)
    return Environment(
        database_url=os.environ.get("DATABASE_URL") or None,
        redis_url=os.environ.get("REDIS_URL") or None,
        data=Path(os.environ.get("COHORT_DATA") or ROOT / ".cohort").resolve(),
        secret_key=os.environ.get("COHORT_SECRET_KEY") or None,
        allowed_hosts=allowed,
        port=int(port),
        dataset_hosts=os.environ.get("COHORT_DATASET_HOSTS", ""),
        hub_endpoint=os.environ.get("HF_ENDPOINT") or "https://huggingface.co",
        hub_token=os.environ.get("HF_TOKEN", "").strip(),
        worker_class=worker_class,
        email_url=email_url,
        email_from=os.environ.get("COHORT_EMAIL_FROM") or "cohort@localhost",
        url=(os.environ.get("COHORT_URL") or f"http://localhost:{port}").rstrip("/"),
        is_url_given=bool(os.environ.get("COHORT_URL")),
        webhook_hosts=os.environ.get("COHORT_WEBHOOK_HOSTS", ""),
        sign_in_providers=_read_providers(),
    )


def _check_links(email_url: str, hosts: Iterable[str]) -> None:
    """Links in mail would otherwise lead wherever whoever asks for it says."""
    wide = [host for host in hosts if host.startswith(("*", "."))]
    if email_url and wide and not os.environ.get("COHORT_URL"):
        raise ValueError(
            f"COHORT_ALLOWED_HOSTS allows any host by {wide[0]!r}, so links in mail "
            "need COHORT_URL: set it to the address where people reach the pages, or "
            "name the hosts."
        )


def _read_providers() -> tuple[SignInProvider, ...]:
    oidc = os.environ.get("COHORT_OIDC_NAME") or "single sign-on"
    named = {"oidc": oidc, "github": "GitHub", "google": "Google"}
    found = [_read_provider(key, name) for key, name in named.items()]
    return tuple(each for each in found if each is not None)


def _read_provider(key: str, name: str) -> SignInProvider | None:
    names = [f"COHORT_{key.upper()}_{part}" for part in ("ID", "SECRET")]
    names += ["COHORT_OIDC_URL"] * (key == "oidc")
    given = {each: os.environ.get(each, "").strip() for each in names}
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
    return {name: os.environ[name] for name in names if name in os.environ}
