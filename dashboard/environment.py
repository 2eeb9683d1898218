"""The only module that reads the environment.

DATABASE_URL, REDIS_URL: addresses of servers; unset, Cohort starts its own inside
COHORT_DATA. COHORT_DATA: where everything of this installation lives.
COHORT_SECRET_KEY: unset, one is made and kept in COHORT_DATA. COHORT_ALLOWED_HOSTS:
comma-separated. COHORT_PORT: where the pages are served. COHORT_JUDGE_…, for models
that judge, are read where they are asked: trainer/rewards/model_judge/keys.py.
COHORT_DATASET_HOSTS: hosts with their ports, comma-separated, that datasets may be
fetched from though they are not public. HF_ENDPOINT, HF_TOKEN: the hub, and what a
worker signs in there with.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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


def read_environment() -> Environment:
    hosts = os.environ.get("COHORT_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
    port = os.environ.get("COHORT_PORT", "8000")
    if not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ValueError(
            f"COHORT_PORT must be a port between 1 and 65535; got {port!r}."
        )
    return Environment(
        database_url=os.environ.get("DATABASE_URL") or None,
        redis_url=os.environ.get("REDIS_URL") or None,
        data=Path(os.environ.get("COHORT_DATA") or ROOT / ".cohort").resolve(),
        secret_key=os.environ.get("COHORT_SECRET_KEY") or None,
        allowed_hosts=tuple(h.strip() for h in hosts.split(",") if h.strip()),
        port=int(port),
        dataset_hosts=os.environ.get("COHORT_DATASET_HOSTS", ""),
        hub_endpoint=os.environ.get("HF_ENDPOINT") or "https://huggingface.co",
        hub_token=os.environ.get("HF_TOKEN", "").strip(),
    )


HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


def hub_variables() -> dict[str, str]:
    """What a process of ours needs to find models as a worker does."""
    names = ("HOME", *HUB_VARIABLES, *PROXIES, *map(str.lower, PROXIES))
    return {name: os.environ[name] for name in names if name in os.environ}
