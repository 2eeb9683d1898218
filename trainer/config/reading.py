"""Reads configurations from files, applies changes, lists required packages."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from trainer.config.part import Part, leaves, read_about
from trainer.config.run import RunConfig
from trainer.rewards.rule import compile_pattern

HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def place_models(tree: Any, folder: Path) -> None:
    """Give each model of a configuration or recipe its place, the file's being known.

    `tree` is what was read of the file, be it valid or not; it is changed.
    """
    for part, name in _naming_models(tree):
        if isinstance(path := part.get(name), str) and path:
            part[name] = place_model(path, folder)


def place_model(path: str, folder: Path) -> str:
    """Return a folder's absolute path; as it stands, what can only be a hub id.

    What has the form of both is the folder where there is one.
    """
    try:
        place = os.path.abspath(folder / Path(path).expanduser())
    except RuntimeError:  # ~NAME of no one
        return path
    is_folder = HUB_ID.fullmatch(path) is None or os.path.isdir(place)
    return place if is_folder else path


def without_model_paths(tree: Any) -> Any:
    """Copy without the models' paths: a folder's differs from host to host."""
    copied = copy.deepcopy(tree)
    for part, name in _naming_models(copied):
        part[name] = ""
    return copied


def named_models(tree: Any) -> list[str]:
    """List the models of a configuration or recipe, as it names them."""
    paths = (part.get(name) for part, name in _naming_models(tree))
    return [path for path in paths if isinstance(path, str)]


def _naming_models(tree: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the parts that name a model, and by which key: policy, teachers of the run
    and of its phases, reward models.
    """
    if isinstance(tree, dict) and isinstance(tree.get("model"), dict):
        yield tree["model"], "path"
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            params, reference = part.get("params"), part.get("reference")
            if part.get("kind") == "reward_model" and isinstance(params, dict):
                yield params, "path"
            if isinstance(reference, dict) and isinstance(reference.get("model"), str):
                yield reference, "model"
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part


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
            f"{path} has more than {MAX_BYTES:,} bytes, the limit for a run "
            "configuration. Pass another file."
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
    """Return whether a key may have more parts than that, with dots between them.

    tomllib takes time by the square of them: minutes over a text of 256 KiB. A text in
    quotes may be taken for a key.
    """
    return compile_pattern(rf"(?:{_PART}){{{max_parts}}}").search(toml) is not None


def _parse(path: Path, data: bytes) -> Any:
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = data.decode("utf-8-sig")
        if kind == "TOML":
            if has_long_key(text, max_parts=MAX_PARTS):
                raise ValueError(
                    f"a key has more than {MAX_PARTS} parts separated by dots"
                )
            return parse_toml_text(text)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(why_unreadable(error)) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 at byte {error.start + 1:,}. Save it as UTF-8."
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid {kind}: {error}.") from None


def parse_toml_text(text: str) -> dict[str, Any]:
    """Parse as tomllib does; skip a byte order mark, which editors of Windows write.

    Raises:
        ValueError: what is wrong with it, without a period.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(why_unreadable(error)) from None


def why_unreadable(error: ValueError | RecursionError) -> str:
    """Explain what tomllib or json met, where Python's own words are of its limits."""
    if isinstance(error, RecursionError):
        return "nested too deeply; flatten it"
    if isinstance(error, tomllib.TOMLDecodeError):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1:,} is not UTF-8"
    return "it contains a number of more than 4,300 digits. Shorten it"


# The loop reads these where it needs them; all else went into what it holds.
MAY_CHANGE = tuple(
    path for path, field in leaves(RunConfig) if read_about(field).get("may_change")
)


class Change(Part):
    """Settings that hold from the step behind `after_step` on; null: from the next on.

    >>> Change(number=1, after_step=30, settings={"optim.num_steps": 200})
    """

    number: int = Field(ge=1, description="Changes to the run's settings, in order.")
    after_step: int | None = Field(None, ge=0)
    settings: dict[str, int]

    @field_validator("settings")
    @classmethod
    def _may_change(cls, settings: dict[str, int]) -> dict[str, int]:
        for path in settings:
            if path not in MAY_CHANGE:
                raise ValueError(
                    f"{path} cannot change during a run. These settings can: "
                    f"{', '.join(MAY_CHANGE)}."
                )
        return settings


class ChangeList(Part):
    """changes.json, beside the event log."""

    changes: tuple[Change, ...] = ()


def change_settings(config: RunConfig, settings: Mapping[str, int]) -> RunConfig:
    """Return the configuration with changed settings; ValueError where they do not fit.

    More steps are steps of the last phase, where there are phases. A phase that has an
    interval of its own keeps it.
    """
    tree: dict[str, Any] = config.model_dump()
    for path, value in settings.items():
        part, name = path.split(".")
        tree[part][name] = value
    more = tree["optim"]["num_steps"] - config.optim.num_steps
    if tree["phases"] and more:
        *others, last = tree["phases"]
        tree["phases"] = [*others, {**last, "num_steps": last["num_steps"] + more}]
    return RunConfig.model_validate(tree)


OPTIONAL_PACKAGES = ("bitsandbytes", "peft", "vllm")
# Others of vLLM bring another torch.
_VERSIONS = {"vllm": "==0.32.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageNeed:
    """A setting that takes a package.

    >>> PackageNeed(package="peft", setting="model.lora_rank = 8", otherwise="0")
    """

    package: str
    setting: str
    otherwise: str  # the value that takes none

    def __str__(self) -> str:
        return f"{self.setting} requires the package {self.package}"

    @property
    def remedy(self) -> str:
        name = self.setting.partition(" ")[0]
        asked = self.package + _VERSIONS.get(self.package, "")
        return f'run "pip install {asked}" or set {name} to {self.otherwise}'


def needed_packages(config: RunConfig) -> list[PackageNeed]:
    """List packages that the phases need, each named once."""
    needs: dict[str, PackageNeed] = {}
    for phase in config.phase_configs:
        for need in _needs_of(phase.config):
            needs.setdefault(need.package, need)
    return list(needs.values())


def _needs_of(config: RunConfig) -> Iterator[PackageNeed]:
    model = config.model
    for package, is_needed, setting, otherwise in (
        (
            "bitsandbytes",
            config.optim.optimizer == "adamw_8bit",
            'optim.optimizer = "adamw_8bit"',
            '"adamw"',
        ),
        (
            "bitsandbytes",
            model.quantization == "4bit",
            'model.quantization = "4bit"',
            '"none"',
        ),
        ("peft", model.lora_rank > 0, f"model.lora_rank = {model.lora_rank}", "0"),
        (
            "vllm",
            config.rollout.engine == "vllm",
            'rollout.engine = "vllm"',
            '"transformers"',
        ),
    ):
        if is_needed:
            yield PackageNeed(package=package, setting=setting, otherwise=otherwise)


def installed_packages() -> list[str]:
    """List those of OPTIONAL_PACKAGES that are here, without loading them."""
    importlib.invalidate_caches()  # one may have come since this process began
    return [name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name)]


def require_packages(config: RunConfig) -> None:
    """
    Raises:
        ValueError: one that the run needs is not here.
    """
    here = installed_packages()
    for need in needed_packages(config):
        if need.package not in here:
            raise ValueError(f"{need}, which is not installed: {need.remedy}.")
