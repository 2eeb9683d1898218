"""`make check-gpu`: what of Cohort works on this machine's GPU, within twelve minutes.

    python -m tests.gpu.check [--device cpu --tiny] [--only sampling …] [--out FILE]

This file needs Python alone. The stages (tests/gpu/stages.py) need torch and
transformers too; what else they need is installed into an environment of their own,
which sees this Python's packages. PIP_FIND_LINKS names a folder of wheels for a machine
without a network; `make gpu-wheels` fills one.

Each stage is a process of its own, so that none takes another along. A stage that fails
ends nothing, and one that there is no time for is skipped. The exit code is 1 if any
has failed. --out gets all figures as JSON after each stage, with a folder of logs
beside it.

Stages are in the order of their worth. Where a command may take ten minutes only, use
--seconds 570, and --only for what was skipped.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Limits in seconds, by worth: a machine that is lent for minutes begins with the first.
STAGES = {
    "environment": 30,
    "attention": 40,
    "sampling": 100,
    "architectures": 70,
    "sharded": 70,
    "runs": 110,
    "vocabulary": 40,
    "update": 45,
    "long_tail": 60,
    "auto": 60,
    "out_of_memory": 40,
    "logprobs": 25,
    "teacher": 40,
    "learning": 90,
    "unit_tests": 150,
    "two_gpus": 120,
    "vllm": 240,
    "trl": 180,
}
# Their work needs no GPU, so it begins beside the first stages.
BACKGROUND = ("unit_tests",)
# Nothing to do without one: there is no limit of memory, or `make test` does it.
GPU_ONLY = ("out_of_memory", "unit_tests")
LONG = ("learning",)  # left out of the small form
CPU_PATIENCE = 10  # a limit is for a GPU that is lent; a CPU may be slow or busy
LEAST_SECONDS = 5  # a stage is not begun with less
# What a Python with torch and transformers may lack, by the module that shows it.
NEEDED = {
    "pydantic": ("pydantic", "pydantic-core", "annotated-types", "typing-inspection"),
    "re2": ("google-re2",),
    "math_verify": (
        "math-verify",
        "latex2sympy2-extended",
        "antlr4-python3-runtime",
        "py3langid",
    ),
    "jsonschema": (
        "jsonschema",
        "jsonschema-specifications",
        "referencing",
        "rpds-py",
    ),
}
# Taken where a folder of wheels has them: the versions that the engine is tested with,
# and what its steps are compared with, which only one stage needs.
TESTED = ("transformers", "tokenizers")
COMPARED = ("trl", "datasets", "dill", "multiprocess")


@dataclass
class Result:
    stage: str
    status: str  # PASS, FAIL or SKIP
    seconds: float = 0.0
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self.figures.items())
        message = "; ".join(filter(None, (self.reason, figures)))
        return f"{self.status} {self.stage:<14}{self.seconds:6.1f} s  {message}"


class Stage:
    """A stage's process. It loads its modules at once, and begins on request.

    So the next stage loads while the one before it uses the GPU.
    """

    def __init__(self, name: str, python: str, args: argparse.Namespace) -> None:
        self.name = name
        self.log = args.out.parent / "check-gpu-logs" / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        options = ["--device", args.device, "--folder", str(args.folder)]
        options += ["--tiny"] if args.tiny else []
        options += ["--starter", str(args.starter)]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-m", "tests.gpu.stages", name, *options],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._began = time.monotonic()

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._began = time.monotonic()
        try:
            self._process.stdin.write("begin\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its end tells why

    def result(self, *, limit: float) -> Result:
        try:
            printed, _ = self._process.communicate(timeout=max(1.0, limit))
        except subprocess.TimeoutExpired:
            self.end()
            reason = f"timed out after {limit:.0f} s"
            return self._result("FAIL", reason)
        lines = printed.strip().splitlines()
        if self._process.returncode != 0 or not lines:
            return self._result("FAIL", self._last_words())
        found = json.loads(lines[-1])
        return self._result(found["status"], found["reason"], found["figures"])

    def end(self) -> None:
        """End it and what it started, which is its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _result(
        self, status: str, reason: str, figures: dict[str, Any] | None = None
    ) -> Result:
        seconds = time.monotonic() - self._began
        return Result(self.name, status, round(seconds, 1), reason, figures or {})

    def _last_words(self) -> str:
        lines = [line for line in self.log.read_text().splitlines() if line.strip()]
        return f"exit code {self._process.returncode}: " + " | ".join(lines[-3:])


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end the stages
    deadline = time.monotonic() + args.seconds
    names = [name for name in STAGES if name in (args.only or STAGES)]
    left_out = (GPU_ONLY if args.device == "cpu" else ()) + (LONG if args.tiny else ())
    names = [name for name in names if name not in left_out]
    with tempfile.TemporaryDirectory(prefix="cohort-check-") as folder:
        args.folder = Path(folder)
        python = make_environment(args.folder)
        results = _run(names, python, args, deadline)
    counts = Counter(result.status for result in results)
    _print(
        ", ".join(f"{counts[status]} {status}" for status in ("PASS", "FAIL", "SKIP"))
    )
    return 1 if counts["FAIL"] else 0


def _run(
    names: Sequence[str], python: str, args: argparse.Namespace, deadline: float
) -> list[Result]:
    """One stage after another; each result is printed and written as it is there."""
    results: list[Result] = []
    stages = {name: Stage(name, python, args) for name in names if name in BACKGROUND}
    try:
        for stage in stages.values():
            stage.begin()
        for name, following in zip_longest(names, names[1:]):
            left = deadline - time.monotonic()
            if left < LEAST_SECONDS:
                result = Result(name, "SKIP", reason="there is no time left")
            else:
                for each in filter(None, (name, following)):
                    if each not in stages:
                        stages[each] = Stage(each, python, args)
                if name not in BACKGROUND:
                    stages[name].begin()
                limit = STAGES[name] * (1 if args.device == "cuda" else CPU_PATIENCE)
                result = stages[name].result(limit=min(limit, left))
            results.append(result)
            _print(str(result))
            found = {"command": sys.argv, "results": [asdict(each) for each in results]}
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        for stage in stages.values():
            stage.end()
    return results


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def make_environment(folder: Path) -> str:
    """A Python that has all that the stages need: this one, or one made of wheels."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    wanted = [package for name in absent for package in NEEDED[name]]
    wheels = Path(os.environ.get("PIP_FIND_LINKS") or os.devnull)
    has_wheels = any(wheels.glob("transformers-*.whl"))
    if not wanted and not has_wheels:
        return sys.executable
    place = folder / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = place / "lib" / version / "site-packages"
    # This Python may be a virtual environment itself, which `system_site_packages`
    # would pass over.
    paths = sysconfig.get_paths()
    seen = dict.fromkeys((paths["purelib"], paths["platlib"]))
    (packages / "outer.pth").write_text("".join(f"{path}\n" for path in seen))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-compile", "--target", str(packages)]
    if has_wheels:
        command.append("--no-index")
        subprocess.run([*command, *COMPARED], check=False)
    subprocess.run([*command, *wanted, *(TESTED if has_wheels else ())], check=True)
    return str(place / "bin" / "python")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and batches")
    parser.add_argument("--only", nargs="+", choices=STAGES, help="these stages")
    parser.add_argument("--seconds", type=float, default=720, help="for all stages")
    parser.add_argument(
        "--starter",
        type=Path,
        default=ROOT / "trainer" / "starter" / "countdown",
        help="folder of the starter (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, default=Path(".cohort/check-gpu.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
