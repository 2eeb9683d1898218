"""The stages of `make check-gpu`, each in a process of its own: see check.py.

    python -m tests.gpu.stages NAME --device cuda --folder FOLDER

A stage loads what it needs, waits for a line on its input, and prints its result as a
line of JSON.
"""

import argparse
import contextlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from tests.environment import child_environment
from tests.gpu.engines import vllm
from tests.gpu.kernels import attention
from tests.gpu.models import architectures
from tests.gpu.processes import sharded, two_gpus
from tests.gpu.runs import auto, learning, out_of_memory, runs
from tests.gpu.sampling import long_tail, sampling
from tests.gpu.setup import Failed, Setup, Skip
from tests.gpu.updates import logprobs, teacher, updates, vocabulary
from tests.trainer.tiny import ROOT
from trainer.model.loading import prepare_device
from trainer.tokenizers import first_line

TRL_SECONDS = 160  # of the stage's limit
# On the device that others fail on first, and those that start processes.
UNIT_TESTS = (
    "model/test_adapters",
    "rollout/test_decoder",
    "rollout/test_engine_fallback",
    "model/test_flat",
    "parallel/test_launch",
    "model/test_logprobs",
    "test_heartbeat",
    "model/test_reference",
    "serving/test_reference_server",
    "rollout/test_rollout",
    "parallel/test_sharding",
    "test_tensorfile",
)


def environment(setup: Setup) -> None:
    figures = setup.figures
    figures |= {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cores": len(os.sched_getaffinity(0)),
    }
    for name in ("vllm", "liger_kernel", "trl", "peft", "bitsandbytes"):
        figures[name] = "yes" if importlib.util.find_spec(name) else "no"
    with contextlib.suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn

        figures["varlen_attn"] = " ".join(inspect.signature(varlen_attn).parameters)
    if setup.device == "cuda":
        if not torch.cuda.is_available():
            raise Failed("torch sees no GPU")
        total = torch.cuda.get_device_properties(0).total_memory
        figures["gpu"] = f"{torch.cuda.get_device_name()}, {total / 2**30:.0f} GiB"
        torch.randn(8, device="cuda").sum().item()


def unit_tests(setup: Setup) -> None:
    """Tests of the engine on a machine with a GPU, which is hidden from them."""
    if importlib.util.find_spec("xdist") is None:
        raise Skip("no pytest-xdist")
    files = [f"tests/trainer/{name}.py" for name in UNIT_TESTS]
    marks = "not slow and not faults and not vllm"
    chosen = []
    if importlib.util.find_spec("bitsandbytes") is None:
        chosen = ["-k", "not four_bits and not 4_bits"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-n", "8"]
    options = ["--rootdir", str(ROOT), "--confcutdir", "tests/trainer", "-m", marks]
    options += ["--import-mode", "importlib", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest, *options, *chosen, *files],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stderr.write(done.stdout[-20_000:])
    (end,) = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-300:]]
    setup.figures["pytest"] = end.strip("= ")
    if done.returncode != 0:
        failed = re.findall(r"^(?:FAILED|ERROR) \S+", done.stdout, re.M)
        raise Failed("; ".join(failed[:8]) or f"exit code {done.returncode}")


def trl(setup: Setup) -> None:
    """Steps beside TRL's, which are only reported; of more prompts if time is left."""
    absent = [n for n in ("trl", "datasets") if importlib.util.find_spec(n) is None]
    if absent:
        raise Skip(f"no {', '.join(absent)}")
    for prompts, new in ((32, 256), (64, 256)) if setup.device == "cuda" else ((2, 8),):
        begun = time.monotonic()
        _beside_trl(setup, prompts=prompts, new=new)
        # twice as many take twice as long
        if 3 * (time.monotonic() - begun) > TRL_SECONDS:
            return


def _beside_trl(setup: Setup, *, prompts: int, new: int) -> None:
    out = setup.folder / "bench.json"
    options = ["--part", "step", "--minutes", "2", "--steps", "1"]
    options += ["--prompts", str(prompts), "--new", str(new)]
    options += ["--model", "tiny" if setup.tiny else "0.5B"]
    if setup.device == "cpu":
        options += ["--device", "cpu", "--dtype", "float32"]
        options += ["--group", "2", "--trl-micro-batches", "4"]
    options += ["--folder", str(setup.folder / "bench"), "--out", str(out)]
    command = [sys.executable, "-m", "tests.bench.bench_gpu", *options]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    (part,) = json.loads(out.read_text())["parts"]
    (row,) = part["table"]
    values = {"TRL tokens/s": row[1], "Cohort": row[2], "ratio": row[3]}
    setup.figures.update(
        {f"{name}, {prompts} prompts": values[name] for name in values}
    )


STAGES: dict[str, Callable[[Setup], None]] = {
    "environment": environment,
    "attention": attention,
    "sampling": sampling,
    "architectures": architectures,
    "sharded": sharded,
    "runs": runs,
    "logprobs": logprobs,
    "teacher": teacher,
    "update": updates,
    "vocabulary": vocabulary,
    "long_tail": long_tail,
    "auto": auto,
    "out_of_memory": out_of_memory,
    "learning": learning,
    "unit_tests": unit_tests,
    "trl": trl,
    "vllm": vllm,
    "two_gpus": two_gpus,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--starter", type=Path, required=True)
    args = parser.parse_args()
    starter = args.starter.resolve()  # configurations name it from another folder
    setup = Setup(args.device, args.tiny, args.folder, starter)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    prepare_device(torch.device(args.device))
    if not sys.stdin.readline():
        return 1  # the check that started it has ended
    status, reason = "PASS", ""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            STAGES[args.stage](setup)
        except Skip as skip:
            status, reason = "SKIP", str(skip)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
            status, reason = "FAIL", f"{type(error).__name__}: {first_line(error)}"
            traceback.print_exc()
    found = {"status": status, "reason": reason, "figures": setup.figures}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
