"""A run on a Ray cluster is the run of as many processes of one machine."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.trainer.ray_clusters import HEAD, SECOND, TwoNodes, two_nodes
from tests.trainer.test_distributed import assert_same_story, together, tree_of
from tests.trainer.tiny import start_trainer, write_config

RAY = {"where": "ray", "num_nodes": 2, "num_threads": 1}
LAST = Path("checkpoints/step-000006-attempt-1/model/model.safetensors")


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    # Short: the path of a unix socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="cohort-ray-", dir="/tmp"))
    with two_nodes(folder) as found:
        yield found
    shutil.rmtree(folder, ignore_errors=True)


def test_two_nodes_train_as_two_processes_of_one_machine_do(
    nodes: TwoNodes, model_folder: Path, rows_path: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, tree_of(model_folder, rows_path, distributed=RAY))
    out = tmp_path / "ray"

    run = nodes.start(config, out)
    two = together(config, "two")
    output, _ = run.communicate(timeout=120)

    assert run.returncode == 0, output
    assert_same_story(out, two)
    ours, theirs = load_file(out / LAST), load_file(two / LAST)
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert {path.name for path in out.glob("rank-*.log")} == {
        "rank-0.log",
        "rank-1.log",
    }
    assert "step 6/6" in output  # the first rank's


@pytest.mark.slow
def test_what_a_cluster_has_is_told_by_node(nodes: TwoNodes) -> None:
    found = ask("cluster", "--address", nodes.address, env=nodes.environment)

    assert found["error"] is None
    assert found["address"] == nodes.address
    assert {node["address"] for node in found["nodes"]} == {HEAD, SECOND}
    for node in found["nodes"]:
        assert node["is_alive"]
        assert (node["cpus"], node["cpus_free"]) == (1, 1)
        assert (node["gpus"], node["gpus_free"], node["gpu_kind"]) == (0, 0, None)
        assert node["memory_bytes"] > 0


@pytest.mark.slow
def test_a_cluster_without_our_token_says_so(nodes: TwoNodes) -> None:
    wrong = nodes.environment | {"RAY_AUTH_TOKEN": "0" * 64}

    found = ask("cluster", "--address", nodes.address, env=wrong)

    assert nodes.address in found["error"]
    assert found["nodes"] == []


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:9", "head"])
def test_an_address_without_a_cluster_is_named(address: str) -> None:
    found = ask("cluster", "--address", address)

    assert address in found["error"]
    assert found["nodes"] == []


def ask(*arguments: object, **options: Any) -> dict[str, Any]:
    child = start_trainer(*arguments, **options)
    output, _ = child.communicate(timeout=20)
    assert child.returncode == 0, output
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found
