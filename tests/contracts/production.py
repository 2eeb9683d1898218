"""What the container files and the units say of each process, as lists of arguments."""

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
UNITS = DOCKER / "systemd"
SECONDS = re.compile(r"(\d+)s?")
SERVICES = ("web", "default-worker", "beat", "training-worker")


def compose(*names: str) -> dict[str, Any]:
    """All services of the files, anchors resolved."""
    services: dict[str, Any] = {}
    for name in names or ("compose.yaml", "compose.gpu.yaml"):
        services |= yaml.safe_load((DOCKER / name).read_text())["services"]
    return services


def dockerfile_list(image: str, instruction: str) -> list[str]:
    """The JSON list of CMD or of HEALTHCHECK's CMD."""
    text = (DOCKER / f"{image}.Dockerfile").read_text()
    found = re.search(rf"^{instruction}(?:[^\[]*?) ?(\[.*\])$", text, re.MULTILINE)
    assert found is not None, instruction
    arguments: list[str] = json.loads(found[1])
    return arguments


def container_command(service: str) -> list[str]:
    image = "gpu" if service == "training-worker" else "web"
    command: list[str] = compose()[service].get("command") or dockerfile_list(
        image, "CMD"
    )
    return command


def health_command(service: str) -> list[str]:
    """As the container runs it: a list, or what its shell is given."""
    image = "gpu" if service == "training-worker" else "web"
    reported = compose()[service].get("healthcheck")
    if reported is None:
        return dockerfile_list(image, "HEALTHCHECK")
    kind, *arguments = reported["test"]
    # Compose itself takes "$$" for "$".
    arguments = [argument.replace("$$", "$") for argument in arguments]
    return arguments if kind == "CMD" else ["/bin/sh", "-c", *arguments]


def grace_seconds(service: str) -> int:
    found = SECONDS.fullmatch(compose()[service].get("stop_grace_period", "10s"))
    assert found is not None
    return int(found[1])


def read_unit(path: Path) -> configparser.RawConfigParser:
    """Of a name that is given several times the last value; enough for the tests."""
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


def unit_of(service: str) -> configparser.RawConfigParser:
    at = "@" if service == "training-worker" else ""
    return read_unit(UNITS / f"cohort-{service}{at}.service")


def unit_command(service: str) -> list[str]:
    return shlex.split(unit_of(service)["Service"]["ExecStart"])
