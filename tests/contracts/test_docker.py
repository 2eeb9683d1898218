"""What the container files refer to is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
IMAGES = ("web", "gpu")


def compose(*names: str) -> dict[str, Any]:
    services: dict[str, Any] = {}
    for name in names:
        services |= yaml.safe_load((DOCKER / name).read_text())["services"]
    return services


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_copies_only_what_exists_and_is_let_through(image: str) -> None:
    text = (DOCKER / f"{image}.Dockerfile").read_text()
    let_through = (DOCKER / f"{image}.Dockerfile.dockerignore").read_text().split()

    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    sources = [source for copy in copies for source in copy.split()]

    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in let_through


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_a_user_of_its_own_and_says_whether_it_is_well(
    image: str,
) -> None:
    text = (DOCKER / f"{image}.Dockerfile").read_text()

    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert "--uid 10001" in text
    assert "\nHEALTHCHECK " in text


def test_the_web_image_has_no_torch() -> None:
    packages = (ROOT / "requirements-web.lock").read_text().splitlines()

    names = {line.split("==")[0] for line in packages}
    assert not names & {"torch", "transformers", "accelerate", "peft"}
    assert {"django", "celery", "uvicorn", "reasoning-gym"} <= names


def test_every_service_waits_for_what_it_needs() -> None:
    services = compose("compose.yaml", "compose.gpu.yaml")

    for name, service in services.items():
        for needed in service.get("depends_on", {}):
            assert needed in services, f"{name} waits for {needed}"
    for name in ("web", "default-worker", "beat", "training-worker"):
        assert set(services[name]["depends_on"]) == {"migrate", "valkey"}


def test_no_secret_has_a_default() -> None:
    for name in ("compose.yaml", "compose.gpu.yaml"):
        text = (DOCKER / name).read_text()
        used = re.findall(r"\$\{(?:POSTGRES_PASSWORD|COHORT_SECRET_KEY)([^}]*)\}", text)
        assert used
        assert all(default.startswith(":?") for default in used)


def test_workers_listen_to_the_queues_that_are_used() -> None:
    services = compose("compose.yaml")
    training = (DOCKER / "gpu.Dockerfile").read_text()

    assert "default" in services["default-worker"]["command"]
    assert '"--queues", "training"' in training


def test_every_setting_of_the_example_is_used() -> None:
    example = (DOCKER / ".env.example").read_text()
    text = (DOCKER / "compose.yaml").read_text()

    for name in re.findall(r"^([A-Z_]+)=", example, re.MULTILINE):
        assert f"${{{name}" in text
