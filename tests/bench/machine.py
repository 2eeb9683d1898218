"""What a table of figures cannot be read without: machine, versions, command."""

import os
import platform
import shlex
import statistics
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from trainer.host import num_cores, settle_in

# As the trainer does; TRL is as fast with it as without on idle cores. OpenMP reads it
# when torch is loaded, so whatever measures imports this module first.
settle_in()

_PACKAGES = ("torch", "transformers", "trl")


def heading(
    module: str, *, host: str | None = None, packages: Sequence[str] = _PACKAGES
) -> str:
    """Lines that stand above a table: what was run, where, and with which versions.

    Args:
        module: that was run.
        host: the machine, where another process had to find it out.
        packages: whose versions matter.
    """
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    return f"`{command}`\n\n{host or machine()}; {versions(packages)}.\n"


def machine(device: str = "cpu") -> str:
    """The processor, its cores and their load, and the GPU that is measured.

    Asking for a GPU's name loads torch and makes a context on it.
    """
    cores = num_cores()
    words = f"{cpu_name()}, {cores} core{'s' if cores != 1 else ''}"
    words += f", load average {os.getloadavg()[0]:.1f}"
    if device == "cuda":
        import torch

        words = f"{torch.cuda.get_device_name()}; {words}"
    return words


def cpu_name() -> str:
    """The name that Linux has for it, elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


def versions(packages: Sequence[str] = _PACKAGES) -> str:
    named = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            named.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            named.append(f"no {package}")
    return ", ".join(named)


# --- printing


def say(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """A line of what goes on meanwhile, beside the result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column is words, the others are mostly numbers."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def spread(values: Sequence[float], form: str) -> str:
    """Median and range."""
    if not values:
        return "–"
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}} ({low:{form}}–{high:{form}})"


def mebibytes(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.0f}"
