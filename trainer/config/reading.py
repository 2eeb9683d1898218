"""A run's configuration out of a file, in bounded time and memory."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.config.model_paths import place_models
from trainer.config.run import RunConfig
from trainer.rewards.patterns import compile_pattern

MAX_BYTES = 2**20  # the longest preset has a hundredth of it
MAX_PARTS = 200  # of a key; a text may have as many dots between words
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*"""


def load_config(path: Path) -> RunConfig:
    """Read a run's configuration from TOML or, by its suffix, JSON.

    Folders of models are taken from the file's own folder, as its rows are.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no configuration.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"{path} has more than {MAX_BYTES:,} bytes, which no run configuration "
            "has. Name another file."
        )
    tree = _parse(path, data)
    place_models(tree, path.parent)
    return RunConfig.model_validate(tree)


def read_config(path: Path) -> RunConfig:
    """`load_config` with every fault as one ValueError for the user, a line each."""
    try:
        return load_config(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise ValueError(
            "\n".join(
                f"{path.name}, {'.'.join(str(at) for at in fault['loc']) or 'all'}: "
                f"{fault['msg'].removeprefix('Value error, ')}"
                for fault in error.errors()
            )
        ) from None


def has_long_key(toml: str, *, max_parts: int) -> bool:
    """Whether a key may have more parts than that, with dots between them.

    tomllib takes time by the square of them: minutes over a text of 256 KiB. A text in
    quotes may be taken for a key.
    """
    return compile_pattern(rf"(?:{_PART}){{{max_parts}}}").search(toml) is not None


def _parse(path: Path, data: bytes) -> Any:
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = data.decode()
        return json.loads(text) if kind == "JSON" else _parse_toml(text)
    except RecursionError:
        raise ValueError(f"{path} is not valid {kind}: it nests too deep.") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid {kind}: {error}.") from None


def _parse_toml(text: str) -> dict[str, Any]:
    if has_long_key(text, max_parts=MAX_PARTS):
        raise ValueError(f"a key has more than {MAX_PARTS} parts with dots between")
    return tomllib.loads(text.replace("\r\n", "\n"))
