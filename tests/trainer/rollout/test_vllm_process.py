"""The process that vLLM is in dies, fails, or loses the one that started it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer.parallel.test_distributed import together, tree_of
from tests.trainer.rollout.test_rollout import ids_of, requests_of
from tests.trainer.several import run_two
from tests.trainer.tiny import only, read_events, write_config, write_model
from tests.trainer.vllm_models import cpu_policy, engine_of, start_process, stir
from tests.trainer.waiting import wait_until
from trainer.model.policy import Policy
from trainer.rollout import vllm
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import SamplingParams
from trainer.rollout.server_engine import VllmServerEngine
from trainer.rollout.vllm import VllmProcess

pytestmark = pytest.mark.slow  # each starts a process that loads torch

WARM = SamplingParams(max_new_tokens=20, temperature=1.0)
MODULE = "tests.trainer.sampling_process"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def process(folder) -> Iterator[VllmProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm, "_MODULE", MODULE)
        process = start_process(folder, sleeps=True)
        yield process
        process.close()


@pytest.fixture
def policy(folder) -> Policy:
    policy = cpu_policy(folder)
    stir(policy)  # else one that was started again would have its weights anyway
    return policy


@pytest.fixture
def engine(policy, process) -> VllmServerEngine:
    return engine_of(policy, process)


def expected_of(policy: Policy, requests: Any) -> list[list[tuple[int, ...]]]:
    own = TransformersEngine(policy, max_batch_rows=64)
    return ids_of(own.sample(requests, WARM))


def pid_of(process: VllmProcess) -> int:
    assert process._process is not None
    return process._process.pid


def test_a_process_killed_while_it_samples_is_replaced(
    policy, engine, process, folder, capsys
):
    requests, pid = requests_of(policy, 2), pid_of(process)
    (folder / "fault").write_text("kill")
    groups: list[int] = []

    found = engine.sample(
        requests, WARM, on_group=lambda index, _completions: groups.append(index)
    )

    assert ids_of(found) == expected_of(policy, requests)
    assert groups == [*range(len(requests))]
    assert pid_of(process) != pid
    assert "SIGKILL" in capsys.readouterr().out


@pytest.mark.parametrize("moment", ["between", "weights", "rest"])
def test_a_process_killed_between_two_steps_is_replaced(
    moment, policy, engine, process, folder
):
    requests, pid = requests_of(policy, 2), pid_of(process)
    if moment == "between":
        os.kill(pid, signal.SIGKILL)
    else:
        (folder / "fault").write_text(moment)
    engine.rest()
    stir(policy, seed=2)

    engine.sync_weights()

    assert pid_of(process) != pid
    assert ids_of(engine.sample(requests, WARM)) == expected_of(policy, requests)


def test_a_failure_of_vllm_is_raised_here_and_ends_its_process(
    policy, engine, process, folder
):
    child = psutil.Process(pid_of(process))
    (folder / "fault").write_text("error")

    with pytest.raises(RuntimeError, match="out of luck"):
        engine.sample(requests_of(policy, 2), WARM)

    assert not child.is_running()


def test_a_listeners_error_is_raised_as_it_is(policy, engine, process):
    def listen(_index: int, _completions: object) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk"):
        engine.sample(requests_of(policy, 2), WARM, on_group=listen)

    requests = requests_of(policy, 2)
    assert ids_of(engine.sample(requests, WARM)) == expected_of(policy, requests)


def test_a_process_whose_weights_are_gone_ends_the_run(policy, process, folder):
    alone = start_process(folder, restarts=False)
    engine = engine_of(policy, alone)
    os.kill(pid_of(alone), signal.SIGKILL)

    with pytest.raises(RuntimeError, match="SIGKILL"):
        engine.sample(requests_of(policy, 2), WARM)


def test_a_model_that_is_refused_is_an_error_of_the_start(process, folder):
    (folder / "fault").write_text("start")

    with pytest.raises(ValueError, match="no such model"):
        start_process(folder)


ORPHAN = """
import sys
from pathlib import Path
from tests.trainer.rollout.test_vllm_process import *
vllm._MODULE = MODULE
process = start_process(Path(sys.argv[1]))
engine = engine_of(cpu_policy(Path(sys.argv[1])), process)
print("pid", pid_of(process), flush=True)
engine.sample(requests_of(cpu_policy(Path(sys.argv[1])), 2), WARM)
"""


@pytest.mark.parametrize("fault", ["", "hang"])
def test_a_process_ends_with_the_one_that_started_it(fault, tmp_path):
    folder = write_model(tmp_path / "model")
    (folder / "fault").write_text(fault)
    code = ORPHAN if fault else f"{ORPHAN}\nimport time; time.sleep(600)"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(
        int(next(line for line in parent.stdout if "pid" in line).split()[1])
    )

    parent.kill()
    parent.communicate()

    wait_until(lambda: not child.is_running())


def use_the_sampler_of_tests(_rank: int) -> None:
    from trainer.run import setup

    vllm._MODULE = MODULE
    setup.require_packages = lambda _config: None


@pytest.mark.parametrize("is_ahead", [False, True])
def test_two_processes_sample_as_one_does(is_ahead, folder, rows_path, tmp_path):
    tree = tree_of(folder, rows_path, rollout={"one_step_off": is_ahead})
    if is_ahead:
        tree["loss"] = {"importance_correction": "token_truncate"}
    one = together(write_config(tmp_path, tree), "one", count=1)
    tree["rollout"]["engine"] = "vllm"

    codes, output = run_two(
        write_config(tmp_path, tree), before=use_the_sampler_of_tests
    )

    assert codes == [0, 0], output
    ours, theirs = (
        read_events(out / "events.jsonl") for out in (tmp_path / "two", one)
    )
    for group, expected in zip(
        only(ours, "group_scored"), only(theirs, "group_scored"), strict=True
    ):
        texts = [each["text"] for each in group["completions"]]
        assert texts == [each["text"] for each in expected["completions"]]
    for step, expected in zip(
        only(ours, "step_finished"), only(theirs, "step_finished"), strict=True
    ):
        norms = (each["metrics"]["grad_norm"] for each in (step, expected))
        assert next(norms) == pytest.approx(next(norms), rel=1e-4)
