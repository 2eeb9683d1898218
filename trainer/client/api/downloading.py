"""A run's file, written as it comes; the name is taken when all of it is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from trainer.client.api.asking import Asker, query_of
from trainer.client.api.uploading import Progress

TABLES = ("metrics", "completions")
ARCHIVES = ("tensorboard", "mlflow")
FORMATS = ("csv", "jsonl", "parquet")
FILES = [f"{table}.{form}" for table in TABLES for form in FORMATS]
FILES += [f"{archive}.zip" for archive in ARCHIVES]


def file_name(path: Path, what: str = "") -> str:
    """Of the file on the server.

    >>> file_name(Path("run-7.csv")), file_name(Path("completions.parquet"))
    ('metrics.csv', 'completions.parquet')
    """
    if what in FILES:
        return what
    kinds = (*TABLES, *ARCHIVES)
    named = what or next((one for one in kinds if one in path.stem.lower()), "metrics")
    name = f"{named}.{path.suffix.lower().removeprefix('.')}"
    if name not in FILES:
        raise ValueError(
            f"A run is not exported as {name!r}. There are: {', '.join(FILES)}."
        )
    return name


def default_name(what: str = "") -> str:
    """
    >>> default_name(), default_name("completions"), default_name("mlflow")
    ('metrics.csv', 'completions.csv', 'mlflow.zip')
    """
    return file_name(Path("-.zip" if what in ARCHIVES else "-.csv"), what)


def download(
    asker: Asker,
    source: str,
    query: Mapping[str, str | int | None],
    target: Path,
    *,
    overwrite: bool,
    on_progress: Progress | None = None,
) -> None:
    if target.exists() and not overwrite:
        raise ValueError(
            f"{target} is there already. Name another file, or overwrite it."
        )
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    asked = f"{source}{query_of(**query)}"

    def take() -> None:
        with draft.open("wb") as file:
            _copy(asker, asked, file, on_progress)

    try:
        asker.patience.ask(take)  # from its start: it is made while it is sent
        draft.replace(target)
    except OSError as error:
        raise ValueError(f"{target} cannot be written: {error}.") from None
    finally:
        draft.unlink(missing_ok=True)


def print_file(
    asker: Asker, source: str, query: Mapping[str, str | int | None]
) -> None:
    """To standard output; what is printed cannot be taken back, so once."""
    _copy(asker, f"{source}{query_of(**query)}", sys.stdout.buffer, None)


def _copy(
    asker: Asker, asked: str, file: BinaryIO, on_progress: Progress | None
) -> None:
    num_bytes = 0
    for piece in asker.server.pieces(asked):
        file.write(piece)
        num_bytes += len(piece)
        if on_progress:
            on_progress(num_bytes, None)
