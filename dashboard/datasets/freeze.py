"""A dataset version as the file a run reads."""

from __future__ import annotations

import os
from pathlib import Path

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.rows import write_content


def write_rows(version: DatasetVersion, path: Path) -> None:
    """Write the rows as JSON lines, whole or not at all.

    The hash of the file is the version's `content_sha256`.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    stored = version.rows.order_by("position").iterator(chunk_size=2_000)
    try:
        with draft.open("wb") as file:
            content = write_content((row.as_row() for row in stored), file)
            file.flush()
            os.fsync(file.fileno())
        if content.sha256 != version.content_sha256:
            raise ValueError(
                f"{version} has {content.num_rows} rows with hash "
                f"{content.sha256[:12]} in the database, but was imported with "
                f"{version.num_rows} rows and hash {version.content_sha256[:12]}. "
                "Import it again as a new version."
            )
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
