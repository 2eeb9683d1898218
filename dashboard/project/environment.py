"""The environment variables: which exist, and their values.

Every variable can also be a file: NAME_FILE is the path of a file with the value of
NAME, so that secrets do not show in process or container lists.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainer.console import LOG_FORMATS

ROOT = Path(__file__).resolve().parents[2]
# A name or an address; an IPv6 one in brackets.
RAY_HOST = re.compile(r"[A-Za-z0-9_.-]{1,180}|\[[0-9A-Fa-f:.]{2,60}\]")
SHORTEST_TOKEN = 16
WORKER_CLASSES = ("any", "cpu", "gpu", "gpus")
# Health checks of containers, the runbook and local Prometheus use these names.
SERVER_URL, SERVER_TEAMS = "COHORT_SERVER_URL_", "COHORT_SERVER_TEAMS_"
OWN_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A variable as the help page lists it. `about` and `default` are Markdown."""

    name: str
    group: str
    about: str
    default: str = "unset"
    is_secret: bool = False
    is_read_elsewhere: bool = False  # by the engine or a library


SETTINGS = (
    Setting(
        name="COHORT_PORT",
        group="Server",
        about="Port of the web server.",
        default="`8000`",
    ),
    Setting(
        name="COHORT_DATA",
        group="Server",
        about="Folder with all data of this installation: uploads, run folders, "
        "checkpoints, published models, and the embedded PostgreSQL and Valkey.",
        default="`.cohort`",
    ),
    Setting(
        name="COHORT_URL",
        group="Server",
        about="Public URL of this server. Links in e-mails, in webhooks and from "
        "`manage.py sign_in_link` begin with it. With an `https` URL, forms are "
        "accepted even if a proxy hides TLS. E-mail requires it when "
        "`COHORT_ALLOWED_HOSTS` has a wildcard.",
        default="`http://localhost:<port>`",
    ),
    Setting(
        name="COHORT_ALLOWED_HOSTS",
        group="Server",
        about="Host names that Cohort serves, comma-separated. `localhost`, "
        "`127.0.0.1` and `[::1]` are always allowed.",
        default="this machine",
    ),
    Setting(
        name="COHORT_SECRET_KEY",
        group="Server",
        about="Key that signs sessions and webhooks, and encrypts second factors.",
        default="generated once, stored in the data folder",
        is_secret=True,
    ),
    Setting(
        name="DATABASE_URL",
        group="Database and Redis",
        about="PostgreSQL server.",
        default="embedded, in the data folder",
        is_secret=True,
    ),
    Setting(
        name="DATABASE_PASSWORD",
        group="Database and Redis",
        about="Password for a `DATABASE_URL` without one.",
        is_secret=True,
    ),
    Setting(
        name="REDIS_URL",
        group="Database and Redis",
        about="Redis server.",
        default="embedded, in the data folder",
        is_secret=True,
    ),
    Setting(
        name="COHORT_EMAIL_URL",
        group="Mail and webhooks",
        about="Mail server: `smtp://name:password@host:587` (STARTTLS), `smtps://…` "
        "(TLS) or `smtp+plain://…`. Without it, Cohort sends no e-mail.",
        is_secret=True,
    ),
    Setting(
        name="COHORT_EMAIL_FROM",
        group="Mail and webhooks",
        about="Sender address of e-mails.",
        default="`cohort@localhost`",
    ),
    Setting(
        name="COHORT_WEBHOOK_HOSTS",
        group="Mail and webhooks",
        about="Private hosts with ports that webhooks may use, comma-separated.",
        default="none",
    ),
    Setting(
        name="COHORT_OIDC_URL",
        group="Single sign-on",
        about="URL of an OpenID Connect provider. Also requires the ID and the secret.",
    ),
    Setting(
        name="COHORT_OIDC_ID",
        group="Single sign-on",
        about="Client ID at that provider.",
    ),
    Setting(
        name="COHORT_OIDC_SECRET",
        group="Single sign-on",
        about="Client secret at that provider.",
        is_secret=True,
    ),
    Setting(
        name="COHORT_OIDC_NAME",
        group="Single sign-on",
        about="Display name of that provider.",
        default="single sign-on",
    ),
    Setting(
        name="COHORT_GITHUB_ID",
        group="Single sign-on",
        about="Client ID at GitHub. Also requires the secret.",
    ),
    Setting(
        name="COHORT_GITHUB_SECRET",
        group="Single sign-on",
        about="Client secret at GitHub.",
        is_secret=True,
    ),
    Setting(
        name="COHORT_GOOGLE_ID",
        group="Single sign-on",
        about="Client ID at Google. Also requires the secret.",
    ),
    Setting(
        name="COHORT_GOOGLE_SECRET",
        group="Single sign-on",
        about="Client secret at Google.",
        is_secret=True,
    ),
    Setting(
        name="COHORT_DATASET_HOSTS",
        group="Datasets and models",
        about="Private hosts with ports that datasets may be downloaded from, "
        "comma-separated.",
        default="none",
    ),
    Setting(
        name="COHORT_MODEL_FOLDERS",
        group="Datasets and models",
        about="Folders with models that runs may start from, separated by colons; `/` "
        "allows any. Starter models and the team's own are always allowed.",
        default="any folder; none if `COHORT_ALLOWED_HOSTS` names another host",
    ),
    Setting(
        name="COHORT_TASKSETS",
        group="Datasets and models",
        about="Tasksets of verifiers that runs may use, comma-separated; `*` allows "
        "any, and other code that options and rows name. Their code runs without a "
        "sandbox on workers and the web server.",
        default="any taskset; none if `COHORT_ALLOWED_HOSTS` names another host",
    ),
    Setting(
        name="HF_ENDPOINT",
        group="Datasets and models",
        about="URL of the Hugging Face Hub.",
        default="`https://huggingface.co`",
    ),
    Setting(
        name="HF_TOKEN",
        group="Datasets and models",
        about="Hugging Face token of the workers.",
        # Not in SECRETS: the trainer fetches models with it.
    ),
    Setting(
        name="HF_HUB_OFFLINE",
        group="Datasets and models",
        about="`1`: training workers load models from their cache only, never from the "
        "Hub.",
        is_read_elsewhere=True,
    ),
    Setting(
        name="COHORT_WORKER_CLASS",
        group="Workers",
        about="Runs that a training worker accepts: all that fit its GPUs (`any`), or "
        "only runs without a GPU (`cpu`), on one GPU (`gpu`) or on several "
        "(`gpus`).",
        default="`any`",
    ),
    Setting(
        name="COHORT_RAY_ADDRESS",
        group="Workers",
        about="Address of the Ray cluster's head, `host:6379`, for runs on several "
        "machines.",
        default="none",
    ),
    Setting(
        name="COHORT_RAY_TEAM_ADDRESSES",
        group="Workers",
        about="Other Ray clusters that a team may choose in its settings, "
        "comma-separated: their heads' `host:6379`. A cluster "
        "can run code on the worker that connects to it.",
        default="none",
    ),
    Setting(
        name="COHORT_RAY_STORAGE",
        group="Workers",
        about="Where the nodes of the cluster read rows and save checkpoints: a "
        "folder that all of them see, or an fsspec URL such as `s3://bucket/cohort`, "
        "with its credentials in their environment.",
        default="the folder of the run in `COHORT_DATA`",
    ),
    Setting(
        name="COHORT_VLLM",
        group="Workers",
        about="`0`: `make run` does not install vLLM on a machine with an NVIDIA GPU.",
        is_read_elsewhere=True,
    ),
    Setting(
        name="COHORT_ENVIRONMENTS_PYTHON",
        group="Workers",
        about="The Python with verifiers and tasksets, whose code runs without a "
        "sandbox.",
        default="that of `make environments`",
    ),
    Setting(
        name="COHORT_HANG_SECONDS",
        group="Workers",
        about="Seconds without progress (a token, a micro-batch, a score) after which "
        "Cohort logs the trainer's stack traces, kills it and resumes the run.",
        default="`1800`",
    ),
    Setting(
        name="COHORT_SERVER_URL_<NAME>",
        group="Workers",
        about="URLs of rollout or reference servers, comma-separated. Runs send the "
        "token in `tokens/<NAME>` of the data folder only there. Set it for the web "
        "server.",
        is_read_elsewhere=True,
    ),
    Setting(
        name="COHORT_SERVER_TEAMS_<NAME>",
        group="Workers",
        about="Teams that may use these servers, by the first part of their URLs, "
        "comma-separated.",
        default="all teams",
        is_read_elsewhere=True,
    ),
    Setting(
        name="COHORT_JUDGE_KEY_<NAME>",
        group="Judges",
        about="API key that rewards refer to as `<NAME>`.",
        is_read_elsewhere=True,
    ),
    Setting(
        name="COHORT_JUDGE_URL_<NAME>",
        group="Judges",
        about="Base URL of this key. Cohort sends the key only there.",
        is_read_elsewhere=True,
    ),
    Setting(
        name="COHORT_JUDGE_HOSTS",
        group="Judges",
        about="Private hosts with ports that LLM judges may use, comma-separated.",
        default="none",
        is_read_elsewhere=True,
    ),
    Setting(
        name="COHORT_LOG_FORMAT",
        group="Monitoring",
        about="Format of log lines: `text`, or `json` with one object per line.",
        default="`text`",
    ),
    Setting(
        name="COHORT_METRICS_TOKEN",
        group="Monitoring",
        about="Bearer token for `/metrics` and the details of `/readyz`, at least 16 "
        "characters. Without it, only programs on the same machine can read them.",
        is_secret=True,
    ),
    Setting(
        name="COHORT_LEAST_FREE_BYTES",
        group="Monitoring",
        about="Below this much free space in the data folder, `/readyz` reports "
        "“degraded”.",
        default="`2147483648` (2 GiB)",
    ),
    Setting(
        name="COHORT_PROXY_IDS",
        group="Monitoring",
        about="`yes`: use `X-Request-ID` from the reverse proxy. Set it only if the "
        "proxy overwrites the header.",
    ),
    Setting(
        name="COHORT_SENTRY_DSN",
        group="Monitoring",
        about="DSN of the Sentry project that receives errors.",
        is_secret=True,
    ),
    Setting(
        name="OTEL_EXPORTER_OTLP_ENDPOINT",
        group="Monitoring",
        about="URL of the OpenTelemetry collector that receives spans over HTTP.",
    ),
    Setting(
        name="OTEL_EXPORTER_OTLP_HEADERS",
        group="Monitoring",
        about="Headers for the collector: `name=value,name=value`.",
        is_read_elsewhere=True,
    ),
    Setting(
        name="PROMETHEUS_MULTIPROC_DIR",
        group="Monitoring",
        about="Folder that several web processes on one port (`uvicorn --workers`) "
        "share, so that `/metrics` covers all of them. It must be empty at start.",
        is_read_elsewhere=True,
    ),
)
READ_HERE = {setting.name for setting in SETTINGS if not setting.is_read_elsewhere}
# A trainer gets none of these.
SECRETS = tuple(setting.name for setting in SETTINGS if setting.is_secret)


@dataclass(frozen=True, kw_only=True, slots=True)
class SignInProvider:
    """Somewhere that people have an account, with what Cohort is called there."""

    key: str
    name: str
    client_id: str
    secret: str = field(repr=False)
    url: str = ""

    @property
    def allauth_name(self) -> str:
        return "openid_connect" if self.key == "oidc" else self.key

    @property
    def allauth_app(self) -> dict[str, Any]:
        return {
            "provider_id": self.key,
            "name": self.name,
            "client_id": self.client_id,
            "secret": self.secret,
            "settings": {"server_url": self.url, "oauth_pkce_enabled": True},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Observing:
    """Logs, metrics and traces."""

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
    model_folders: tuple[Path, ...]
    tasksets: frozenset[str]  # *: any
    tasksets_python: str
    hub_endpoint: str
    hub_token: str = field(repr=False)
    worker_class: str
    ray_address: str
    ray_storage: str
    ray_team_addresses: tuple[str, ...]
    hang_seconds: int
    # By its token file's name: the URLs and the teams of a model server.
    servers: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    email_url: str = field(repr=False)
    email_from: str
    url: str
    is_url_given: bool
    trusted_origins: tuple[
        str, ...
    ]  # origins whose forms are accepted, as browsers write them
    webhook_hosts: str
    sign_in_providers: tuple[SignInProvider, ...]
    observing: Observing


def _read_list(name: str) -> frozenset[str]:
    return frozenset(
        part.strip().rstrip("/")
        for part in os.environ.get(name, "").split(",")
        if part.strip()
    )


def _read_folders(name: str, default: str) -> tuple[Path, ...]:
    folders = [folder for folder in (_read(name) or default).split(":") if folder]
    if wrong := next((folder for folder in folders if folder[0] != "/"), None):
        raise ValueError(f"{name} must list absolute paths; got {wrong!r}.")
    return tuple(Path(folder).resolve() for folder in folders)


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
    # If another host is named, ours are for health checks only.
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
        # Others than this machine's people may sign in to a server.
        model_folders=_read_folders("COHORT_MODEL_FOLDERS", "" if others else "/"),
        tasksets=_read_list("COHORT_TASKSETS") or frozenset("" if others else "*"),
        tasksets_python=_read("COHORT_ENVIRONMENTS_PYTHON")
        or str(ROOT / ".venv-environments" / "bin" / "python"),
        hub_endpoint=_read("HF_ENDPOINT") or "https://huggingface.co",
        hub_token=_read("HF_TOKEN"),
        worker_class=worker_class,
        ray_address=_read_ray_address(),
        ray_storage=_read_ray_storage(),
        ray_team_addresses=_read_ray_team_addresses(),
        hang_seconds=_read_hang_seconds(),
        servers={
            name.removeprefix(SERVER_URL): (
                _read_list(name),
                _read_list(name.replace(SERVER_URL, SERVER_TEAMS)),
            )
            for name in os.environ
            if name.startswith(SERVER_URL)
        },
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
    """Read a variable's value, or the content of the file in NAME_FILE.

    ValueError if both are set, or the file is unreadable or empty.
    """
    assert name in READ_HERE, name
    path = os.environ.get(f"{name}_FILE", "")
    if not path:
        return os.environ.get(name, default).strip()
    if os.environ.get(name):
        raise ValueError(f"{name} and {name}_FILE are both set. Unset one.")
    try:
        value = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}_FILE: {path} cannot be read: {error}") from error
    if not value:
        raise ValueError(
            f"{name}_FILE: {path} is empty. Write the value of {name} to it."
        )
    return value


def _read_hang_seconds() -> int:
    seconds = _read("COHORT_HANG_SECONDS") or "1800"
    if not seconds.isdigit() or int(seconds) < 1:
        raise ValueError(
            f"COHORT_HANG_SECONDS must be an integer of at least 1; got {seconds!r}."
        )
    return int(seconds)


def _read_ray_address() -> str:
    address = _read("COHORT_RAY_ADDRESS")
    if address and not _is_ray_address(address):
        raise ValueError(f"COHORT_RAY_ADDRESS must be host:port; got {address!r}.")
    return address


def _read_ray_team_addresses() -> tuple[str, ...]:
    pairs = _read("COHORT_RAY_TEAM_ADDRESSES").split(",")
    addresses = [address.strip() for address in pairs if address.strip()]
    for address in addresses:
        if not _is_ray_address(address):
            raise ValueError(
                "COHORT_RAY_TEAM_ADDRESSES must list host:port, comma-separated; "
                f"got {address!r}."
            )
    return tuple(dict.fromkeys(addresses))


def _is_ray_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_port = port.isdecimal() and 0 < int(port) < 65_536
    return RAY_HOST.fullmatch(host) is not None and is_port


def _read_ray_storage() -> str:
    storage = _read("COHORT_RAY_STORAGE")
    if storage and not (storage.startswith("/") or "://" in storage):
        raise ValueError(
            f"COHORT_RAY_STORAGE must be an absolute path or a URL; got {storage!r}."
        )
    return storage


def _read_observing() -> Observing:
    log_format = _read("COHORT_LOG_FORMAT") or "text"
    if log_format not in LOG_FORMATS:
        raise ValueError(
            f"COHORT_LOG_FORMAT must be one of {', '.join(LOG_FORMATS)}; got "
            f"{log_format!r}."
        )
    least = _read("COHORT_LEAST_FREE_BYTES") or str(2 * 2**30)
    if not least.isdigit():
        raise ValueError(f"COHORT_LEAST_FREE_BYTES must be an integer; got {least!r}.")
    token = _read("COHORT_METRICS_TOKEN")
    if token and len(token) < SHORTEST_TOKEN:
        raise ValueError(
            f"COHORT_METRICS_TOKEN must have at least {SHORTEST_TOKEN} characters; "
            f"got {len(token)}. Generate one with: openssl rand -hex 32"
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
    """Refuse a wildcard: the requester could choose the host of links in e-mails."""
    wide = [host for host in hosts if host.startswith(("*", "."))]
    if email_url and wide and not _read("COHORT_URL"):
        raise ValueError(
            f"COHORT_ALLOWED_HOSTS has the wildcard {wide[0]!r}, so links in "
            "e-mails require COHORT_URL. Set it to the public URL, or list the "
            "hosts."
        )


def _read_providers() -> tuple[SignInProvider, ...]:
    oidc = _read("COHORT_OIDC_NAME") or "single sign-on"
    named = {"oidc": oidc, "github": "GitHub", "google": "Google"}
    providers = [_read_provider(key, name) for key, name in named.items()]
    return tuple(provider for provider in providers if provider is not None)


def _read_provider(key: str, name: str) -> SignInProvider | None:
    names = [f"COHORT_{key.upper()}_{part}" for part in ("ID", "SECRET")]
    names += ["COHORT_OIDC_URL"] * (key == "oidc")
    variables = {variable: _read(variable) for variable in names}
    if not any(variables.values()):
        return None
    if missing := [variable for variable, value in variables.items() if not value]:
        raise ValueError(
            f"Sign-in with {name} requires {', '.join(names)}; missing: "
            f"{', '.join(missing)}."
        )
    client_id, secret, *url = variables.values()
    return SignInProvider(
        key=key, name=name, client_id=client_id, secret=secret, url="".join(url)
    )


def provider_settings(providers: Iterable[SignInProvider]) -> dict[str, Any]:
    """Return the providers as django-allauth expects them."""
    return {
        provider.allauth_name: {"APPS": [provider.allauth_app]}
        for provider in providers
    }


def visible_gpus() -> str | None:
    """CUDA's own list of the GPUs that a process may use; None: all of them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


def hub_variables() -> dict[str, str]:
    """Return what a subprocess needs to find models as a worker does."""
    names = ("HOME", *HUB_VARIABLES, *PROXIES, *map(str.lower, PROXIES))
    variables = {name: os.environ[name] for name in names if name in os.environ}
    return variables | hub_token_path(os.environ)


def hub_token_path(environment: Mapping[str, str]) -> dict[str, str]:
    """HF_TOKEN_FILE by the name that the hub's own library knows."""
    path = environment.get("HF_TOKEN_FILE")
    return {"HF_TOKEN_PATH": path} if path else {}


# Of an installation: the version of its scripts and styles, and its secret key.


def version_of_assets(root: Path) -> str:
    """Return a version that is the same wherever the same files lie, and another one
    once any has changed.

    What pack_assets adds does not count. Vendors' packages are known by npm's list of
    what it installed and by the styles selected from them, and Swagger UI by the
    version of django-ninja. A process that serves no pages may lack the files.
    """
    packages = root / "node_modules"
    listed = packages / ".package-lock.json"
    styles = packages / "@tabler/core/dist/css/tabler.used.css"
    files = (path for path in (root / "static").rglob("*") if path.is_file())
    own = sorted(path for path in files if path.suffix != ".gz")
    digest = hashlib.sha256(version("django-ninja").encode())
    for path in [*own, *filter(Path.exists, (listed, styles))]:
        content = hashlib.sha256(path.read_bytes()).digest()
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()[:12]


def load_secret_key(data: Path) -> str:
    """Made once, in a file that only its user can read."""
    path = data / "secret-key"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        # Two processes may start at once: both use the key that is linked first.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        with os.fdopen(
            os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as f:
            f.write(secrets.token_urlsafe(50))
        with suppress(FileExistsError):  # another process was first
            os.link(mine, path)
        mine.unlink()
        return path.read_text().strip()
