"""Where the embedded servers of one data folder are found.

Both listen on a unix socket and nothing else. The paths follow from the data folder
alone, so every process that knows COHORT_DATA finds them without asking.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

# sun_path holds 108 bytes with its NUL, and PostgreSQL adds "/.s.PGSQL.5432.lock".
LONGEST_FOLDER = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Addresses:
    postgres_folder: Path
    redis_socket: Path

    @property
    def database_url(self) -> str:
        return f"postgresql://cohort@/cohort?host={self.postgres_folder}"

    @property
    def redis_url(self) -> str:
        return f"unix://{self.redis_socket}"


def embedded_addresses(data: Path) -> Addresses:
    folder = data / "sockets"
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
        folder = Path("/tmp") / f"cohort-{os.getuid()}-{digest}"  # nosec B108 # noqa: S108 - socket paths must be short; private_folder() refuses another's
    return Addresses(
        postgres_folder=folder / "postgres",
        redis_socket=folder / "redis" / "redis.sock",
    )
