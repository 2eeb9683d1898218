"""Where the models that a configuration names lie: in a folder, or on a hub."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def place_models(tree: Any, folder: Path) -> None:
    """Give each model of a configuration or recipe its place, the file's being known.

    `tree` is what was read of the file, be it valid or not; it is changed.
    """
    for part in _naming_models(tree):
        if isinstance(path := part.get("path"), str) and path:
            part["path"] = place_model(path, folder)


def place_model(path: str, folder: Path) -> str:
    """A folder's absolute path; as it stands, what can only be a hub id.

    What has the form of both is the folder where there is one.
    """
    try:
        place = os.path.abspath(folder / Path(path).expanduser())
    except RuntimeError:  # ~NAME of nobody
        return path
    is_folder = HUB_ID.fullmatch(path) is None or os.path.isdir(place)
    return place if is_folder else path


def without_model_paths(tree: Any) -> Any:
    """A copy in which no model has a path: a folder's differs from host to host."""
    copied = copy.deepcopy(tree)
    for part in _naming_models(copied):
        part["path"] = ""
    return copied


def named_models(tree: Any) -> list[str]:
    """The models of a configuration or recipe, as it names them."""
    found = (part.get("path") for part in _naming_models(tree))
    return [path for path in found if isinstance(path, str)]


def _naming_models(tree: Any) -> Iterator[dict[str, Any]]:
    """The parts whose `path` is a model's: the policy's, and those of reward models."""
    if isinstance(tree, dict) and isinstance(tree.get("model"), dict):
        yield tree["model"]
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            params = part.get("params")
            if part.get("kind") == "reward_model" and isinstance(params, dict):
                yield params
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
