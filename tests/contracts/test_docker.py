"""What the container files refer to is there, and every container is confined."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from dashboard.local.install import TORCH
from dashboard.supervision.supervisor import UPLOAD_GRACE_SECONDS
from tests.contracts.production import (
    DOCKER,
    ROOT,
    SERVICES,
    compose,
    dockerfile_list,
)
from tests.environment import child_environment

IMAGES = ("web", "gpu")
LONG_LIVED = [name for name in compose() if name != "migrate"]


def test_an_image_copies_only_what_exists_and_is_let_through():
    for image in IMAGES:
        text = (DOCKER / f"{image}.Dockerfile").read_text()
        let_through = (DOCKER / f"{image}.Dockerfile.dockerignore").read_text().split()

        copies = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
        sources = [source for copy in copies for source in copy.split()]

        assert sources, image
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in let_through, image


def test_an_image_runs_as_a_user_of_its_own_and_says_whether_it_is_well():
    for image in IMAGES:
        text = (DOCKER / f"{image}.Dockerfile").read_text()

        assert re.search(r"^USER 10001$", text, re.MULTILINE), image
        assert "--uid 10001" in text, image
        assert "\nHEALTHCHECK " in text, image


def test_the_web_image_backs_up_the_database_of_the_compose_file():
    [image] = re.findall(r"^postgres:(\d+)", compose()["postgres"]["image"])

    text = (DOCKER / "web.Dockerfile").read_text()

    assert re.findall(r"postgresql-client-(\d+)", text) == [image]


def test_the_training_image_keeps_what_was_built_together_and_nothing_else():
    """A package that Cohort needs newer than the base image has it must be free to."""
    text = (DOCKER / "gpu.Dockerfile").read_text()
    [pattern] = re.findall(r'grep -E "(.+?)" /tmp/base.txt > /tmp/kept.txt', text)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    ours = {
        re.split(r"[\[<>=]", needed)[0]
        for extra in ("web", "observe")
        for needed in extras[extra]
    }
    built = {"torch", "torchvision", "triton", "vllm", "flashinfer-python", "numpy"}
    built |= {"nvidia-nccl-cu13", "nvidia_cudnn_cu13", "cuda-bindings"}

    kept = {name for name in ours | built if re.match(pattern, f"{name}==1")}

    assert "--constraint /tmp/kept.txt" in text
    assert kept == built


def test_training_image_has_versions_that_the_engine_allows():
    """vLLM forbids the transformers that Cohort needs, so the base image's is older."""
    text = (DOCKER / "gpu.Dockerfile").read_text()
    [kept] = re.findall(r'grep -E "(.+?)" /tmp/base.txt > /tmp/kept.txt', text)
    [locked] = re.findall(r'grep -oE "(.+?)" requirements.lock >> /tmp/kept.txt', text)
    lock = (ROOT / "requirements.lock").read_text()
    kept_too = [match[0] for match in re.finditer(locked, lock, re.MULTILINE)]
    pins = dict(line.split("==") for line in kept_too)

    wanted = {each.name: each.specifier for each in engine_requirements()}

    # of a base image without a network: vLLM pins torch, and numba bounds numpy
    assert {name for name in wanted if re.match(kept, f"{name}==1")} == {
        "torch",
        "numpy",
    }
    assert str(wanted["torch"]) == TORCH.removeprefix("torch")
    assert pins.keys() == {"transformers", "tokenizers"}
    assert wanted["transformers"].contains(pins["transformers"])


def test_training_image_takes_from_the_locks_what_its_base_lacks(tmp_path):
    text = (DOCKER / "gpu.Dockerfile").read_text()
    [command] = re.findall(r"(awk '.+?) >> /tmp/kept.txt", text, re.DOTALL)
    (tmp_path / "base.txt").write_text("PyYAML==6.0\ntyping_extensions==4.0\n")

    done = subprocess.run(
        ["/bin/sh", "-c", command.replace("/tmp", str(tmp_path))],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )

    pins = [Requirement(line) for line in done.stdout.splitlines()]
    names = {pin.name for pin in pins}
    assert {"django", "celery", "peft", "sentry-sdk"} <= names
    assert not {"pyyaml", "typing-extensions"} & names
    assert all(str(pin.specifier).startswith("==") for pin in pins)


@pytest.mark.slow  # torch is loaded twice, and a wheel may be fetched
def test_training_images_commands_run_with_the_oldest_transformers(tmp_path):
    [commands] = re.findall(
        r"^RUN (cp -r trainer/starter.+?[^\\])$",
        (DOCKER / "gpu.Dockerfile").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    [needed] = [e for e in engine_requirements() if e.name == "transformers"]
    [oldest] = [s.version for s in needed.specifier if s.operator == ">="]
    commands, *_ = commands.replace("/tmp", str(tmp_path)).split("&& rm -rf")
    environment = child_environment() | {"CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    if not version("transformers").startswith(oldest):
        fetch = ["pip", "install", "--no-deps", "--target", str(tmp_path / "old")]
        fetch.append(f"transformers=={oldest}")
        subprocess.run([sys.executable, "-m", *fetch], check=True)
        environment["PYTHONPATH"] += f":{tmp_path}/old"

    subprocess.run(["/bin/sh", "-c", commands], cwd=ROOT, env=environment, check=True)

    with (tmp_path / "starter/run/events.jsonl").open() as events:
        started = json.loads(next(events))
    assert started["versions"]["transformers"].startswith(oldest)


def engine_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["optional-dependencies"]["engine"]]


def test_the_web_image_has_no_torch():
    packages = (ROOT / "requirements-web.lock").read_text().splitlines()

    names = {line.split("==")[0] for line in packages}
    assert not names & {"torch", "transformers", "accelerate", "peft"}
    assert {"django", "celery", "uvicorn", "reasoning-gym"} <= names


def test_every_service_waits_for_what_it_needs():
    services = compose()

    for name, service in services.items():
        for needed in service.get("depends_on", {}):
            assert needed in services, f"{name} waits for {needed}"
    for name in (*SERVICES, "backup"):
        assert set(services[name]["depends_on"]) == {"migrate", "valkey"}


def test_a_container_can_change_nothing_but_its_data():
    for name in compose():
        service = compose()[name]

        assert service["read_only"] is True, name
        assert service["init"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        if "build" not in service:
            assert service["user"] not in ("root", "0"), name
        assert not any(
            "docker.sock" in volume for volume in service.get("volumes", [])
        ), name


def test_a_container_says_whether_it_is_well_and_is_started_again():
    for name in LONG_LIVED:
        service = compose()[name]

        assert service["restart"] == "unless-stopped", name
        # Those without a check of their own have their image's.
        assert "healthcheck" in service or "build" in service, name
        assert not service.get("healthcheck", {}).get("disable"), name
        assert service["logging"]["options"]["max-size"], name


def test_postgres_is_well_only_once_others_reach_it():
    """The server that fills a new folder listens on a unix socket, and ends then."""
    test = compose()["postgres"]["healthcheck"]["test"]

    assert test[:4] == ["CMD", "pg_isready", "-h", "127.0.0.1"]


def test_the_servers_secrets_are_files():
    files = [yaml.safe_load((DOCKER / name).read_text()) for name in ("compose.yaml",)]
    secrets = files[0]["secrets"]

    for name, service in compose().items():
        if name == "valkey":
            continue
        environment = service["environment"]
        named = [value for key, value in environment.items() if key.endswith("_FILE")]
        assert named
        for path in named:
            secret = Path(path).name
            assert path == f"/run/secrets/{secret}"
            assert secret in service["secrets"]
            assert secret in secrets
        for key in ("POSTGRES_PASSWORD", "DATABASE_PASSWORD", "COHORT_SECRET_KEY"):
            assert key not in environment
    assert {entry["file"] for entry in secrets.values()} == {
        f"secrets/{name}" for name in secrets
    }


def test_prepare_writes_the_needed_secrets_once(tmp_path):
    for name in ("prepare.sh", ".env.example"):
        (tmp_path / name).write_bytes((DOCKER / name).read_bytes())
    files = [DOCKER / name for name in ("compose.yaml", "compose.ray.yaml")]
    secrets = [n for f in files for n in yaml.safe_load(f.read_text())["secrets"]]

    def prepare() -> dict[str, str]:
        subprocess.run(
            ["/bin/sh", tmp_path / "prepare.sh"], check=True, capture_output=True
        )
        return {name: (tmp_path / f"secrets/{name}").read_text() for name in secrets}

    first = prepare()
    (tmp_path / ".env").write_text("COHORT_URL=https://cohort.example.org\n")
    second = prepare()

    assert first == second
    assert all(re.fullmatch(r"[0-9a-f]{64}", secret) for secret in first.values())
    assert len(set(first.values())) == len(first)
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".env").read_text().startswith("COHORT_URL=https")
    owner = 10001 if os.geteuid() == 0 else os.geteuid()
    assert (tmp_path / "backups").stat().st_uid == owner


def test_every_setting_of_the_example_is_used_and_no_other():
    example = (DOCKER / ".env.example").read_text()
    files = ("compose.yaml", "compose.gpu.yaml")
    used = "".join((DOCKER / name).read_text() for name in files)

    assert set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE)) == set(
        re.findall(r"\$\{([A-Z_]+)", used)
    )


def test_a_proxy_on_the_server_is_believed():
    """Containers see it at their network's gateway, which must not be another later."""
    text = (DOCKER / "compose.yaml").read_text()
    [network] = yaml.safe_load(text)["networks"]["default"]["ipam"]["config"]
    believed = compose()["web"]["environment"]["FORWARDED_ALLOW_IPS"]

    assert believed == f"${{FORWARDED_ALLOW_IPS:-{network['gateway']}}}"
    gateway, subnet = (
        network[name].replace("${COHORT_NETWORK:-172.30.57}", "172.30.57")
        for name in ("gateway", "subnet")
    )
    assert ip_address(gateway) in ip_network(subnet)


def test_the_overlay_that_is_shown_fits():
    readme = (DOCKER / "README.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    overlay, services = yaml.safe_load(text), compose()

    added = {name for name in overlay["services"] if name not in services}
    secrets = {
        name for one in overlay["services"].values() for name in one.get("secrets", [])
    }

    assert added == {"training-worker-b"}
    worker = overlay["services"]["training-worker-b"]
    assert worker["extends"]["service"] in compose(worker["extends"]["file"])
    assert worker["hostname"] == "training-worker-b"
    assert secrets == set(overlay["secrets"])
    assert (
        overlay["services"]["default-worker"]["image"]
        == services["training-worker"]["image"]
    )


def test_a_training_worker_keeps_its_name():
    """A container's own would be another each time that it is made again."""
    service = compose()["training-worker"]

    assert service["hostname"] == "${COHORT_WORKER_HOST:-training-worker}"


ADDRESS = "COHORT_RAY_ADDRESS"
CONNECTED = ("web", "training-worker")


def test_the_ray_overlay_keeps_the_workers_command_and_publishes_nothing():
    services = compose("compose.ray.yaml")
    shell, option, command = services["training-worker"]["command"]

    joins, serves = command.split(" & exec ")
    assert (shell, option) == ("sh", "-c")
    assert "ray start --address ray-head:6379 --num-cpus 0" in joins
    assert serves.split() == dockerfile_list("gpu", "CMD")
    assert not any("ports" in service for service in services.values())
    addresses = {services[name]["environment"][ADDRESS] for name in CONNECTED}
    assert addresses == {"${COHORT_RAY_ADDRESS:-ray-head:6379}"}
    for service in (each for name, each in services.items() if name != "web"):
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert "ray-token" in service["secrets"]


def test_a_node_of_the_ray_overlay_outlasts_the_ranks_that_save_there():
    worker = compose("compose.ray.yaml")["training-worker"]

    assert "ray-node" in worker["depends_on"]  # so it is stopped first
    period = worker["stop_grace_period"]
    assert int(period.removesuffix("s")) > UPLOAD_GRACE_SECONDS


def test_the_cluster_for_kubernetes_is_valid_and_has_the_token():
    page = (DOCKER.parent / "dashboard/help/ray-clusters.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    spec = yaml.safe_load(text)["spec"]

    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        [container] = group["template"]["spec"]["containers"]
        assert {one["name"] for one in container["env"]} == {
            "RAY_AUTH_MODE",
            "RAY_AUTH_TOKEN",
        }
