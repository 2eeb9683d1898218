"""The packages that only some runs need, which a machine may lack."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

from trainer.config.run import RunConfig

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
        return f"{self.setting} needs the package {self.package}"

    @property
    def remedy(self) -> str:
        name = self.setting.partition(" ")[0]
        asked = self.package + _VERSIONS.get(self.package, "")
        return f'run "pip install {asked}" or set {name} to {self.otherwise}'


def needed_packages(config: RunConfig) -> list[PackageNeed]:
    """Those of all phases, each named once."""
    found: dict[str, PackageNeed] = {}
    for stage in config.stages:
        for need in _needs_of(stage.config):
            found.setdefault(need.package, need)
    return list(found.values())


def _needs_of(config: RunConfig) -> Iterable[PackageNeed]:
    model = config.model
    if config.optim.optimizer == "adamw_8bit":
        yield PackageNeed(
            package="bitsandbytes",
            setting='optim.optimizer = "adamw_8bit"',
            otherwise='"adamw"',
        )
    if model.quantization == "4bit":
        yield PackageNeed(
            package="bitsandbytes",
            setting='model.quantization = "4bit"',
            otherwise='"none"',
        )
    if model.lora_rank > 0:
        yield PackageNeed(
            package="peft",
            setting=f"model.lora_rank = {model.lora_rank}",
            otherwise="0",
        )
    if config.rollout.engine == "vllm":
        yield PackageNeed(
            package="vllm",
            setting='rollout.engine = "vllm"',
            otherwise='"transformers"',
        )


def installed_packages() -> list[str]:
    """Those of OPTIONAL_PACKAGES that are here, without loading them."""
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
            raise ValueError(f"{need}, which is not installed here: {need.remedy}.")
