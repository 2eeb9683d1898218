"""A teacher in this process, behind our server and behind vLLM's: the same numbers."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.environment import child_environment
from tests.trainer.samples import cut, make_batch
from tests.trainer.serving.test_reference_server import Server
from tests.trainer.tiny import config_tree
from tests.trainer.vllm_models import CLOSE, cpu_policy, write_wide_model
from trainer.config import RunConfig
from trainer.model.reference import make_reference
from trainer.serving.client import read_or_make_token

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    return write_wide_model(tmp_path_factory.mktemp("teacher") / "model", seed=3)


@pytest.fixture(scope="module")
def token_file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("token") / "token"


@pytest.fixture(scope="module")
def vllm_url(teacher, token_file) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = {
        "VLLM_API_KEY": read_or_make_token(token_file),
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", teacher),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
            *("--max-model-len", "256", "--enforce-eager"),
        ],
        env=os.environ | child_environment() | key,
    )
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(timeout=60)


def test_a_teacher_is_the_same_in_process_and_behind_either_server(
    teacher, token_file, vllm_url, rows_path, tmp_path
):
    student = write_wide_model(tmp_path / "student")
    policy, ours = cpu_policy(student), Server(teacher, token_file)
    server = {"kind": "server", "token_file": str(token_file)}
    references = {
        "transformers": {"kind": "frozen"},
        "ours": server | {"url": ours.url},
        "vllm": server | {"url": vllm_url, "protocol": "vllm"},
    }
    found = {}
    for name, reference in references.items():
        tree = config_tree(
            student,
            rows_path,
            model={"path": str(student), "device": "cpu", "dtype": "float32"},
            data={"rows": str(rows_path), "max_prompt_tokens": 16},
            reference=reference | {"model": str(teacher)},
        )
        (phase,) = RunConfig.model_validate(tree).phase_configs
        micros = cut(make_batch(20), policy, max_tokens=60)
        made = make_reference(phase, policy)
        made.add_logprobs(micros, temperature=1.0)
        found[name] = torch.cat(
            [micro.reference_logprobs.flatten() for micro in micros]
        )
    ours.end()

    for name in ("ours", "vllm"):
        gap = (found[name] - found["transformers"]).abs().max().item()
        assert gap < CLOSE, name
    with torch.no_grad():
        own = [policy.logprobs(micro, temperature=1.0)[0].flatten() for micro in micros]
    assert (found["vllm"] - torch.cat(own)).abs().max() > 0.1
