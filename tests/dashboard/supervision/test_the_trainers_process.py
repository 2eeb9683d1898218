import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard.project.environment import SECRETS
from dashboard.supervision import process
from dashboard.supervision.process import TrainerProcess

PARENT_PIPE = "import os; fd = int(os.environ['COHORT_PARENT_PIPE']); "


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def test_its_output_and_its_exit_status_are_kept(tmp_path):
    log = tmp_path / "epochs" / "1" / "trainer.log"

    with TrainerProcess(python("print('hello'); raise SystemExit(3)"), log=log) as it:
        wait_for(it.has_exited)
        status = it.reap()

    assert status == 3
    assert log.read_text() == "hello\n"


@pytest.mark.parametrize("is_embedded", [False, True])
def test_a_trainer_leaves_space_to_a_database_on_its_disk(
    tmp_path, settings, *, is_embedded
):
    settings.DATABASE_IS_EMBEDDED = is_embedded
    code = "from trainer.disk import bytes_needed; print(bytes_needed(0))"

    with TrainerProcess(python(code), log=tmp_path / "log") as it:
        wait_for(it.has_exited)

    reserve = 2**30 if is_embedded else 64 * 2**20
    assert (tmp_path / "log").read_text() == f"{reserve}\n"


def test_the_trainer_reads_the_end_of_a_pipe_when_its_supervisor_dies(tmp_path):
    code = PARENT_PIPE + "print(os.read(fd, 1) == b'', flush=True)"

    with TrainerProcess(python(code), log=tmp_path / "log") as it:
        time.sleep(0.3)
        waits = not it.has_exited()
        os.close(it._write_end)
        it._write_end = os.open(os.devnull, os.O_RDONLY)
        wait_for(it.has_exited)

    assert waits
    assert (tmp_path / "log").read_text() == "True\n"


def test_its_children_end_with_it(tmp_path):
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)']); print(child.pid, flush=True)"
    )

    with TrainerProcess(python(code), log=tmp_path / "log") as it:
        wait_for(it.has_exited)
        grandchild = int((tmp_path / "log").read_text())
        assert is_alive(grandchild)
        it.reap()

    wait_for(lambda: not is_alive(grandchild))


def test_leaving_the_block_kills_it(tmp_path):
    with TrainerProcess(
        python("import time; time.sleep(60)"), log=tmp_path / "l"
    ) as it:
        pid = it.pid

    assert not is_alive(pid)
    assert it.reap() == -signal.SIGKILL


def test_it_learns_no_address_and_no_key_of_ours(tmp_path, monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
        monkeypatch.setenv(f"{name}_FILE", "secret")
    code = "import os; print('secret' in os.environ.values())"

    with TrainerProcess(python(code), log=tmp_path / "log") as it:
        wait_for(it.has_exited)

    assert (tmp_path / "log").read_text() == "False\n"


def test_its_log_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "LOG_CAP_BYTES", 10_000)
    monkeypatch.setattr(process, "LOG_KEPT_BYTES", 1_000)
    code = "import time; print('x' * 20_000, flush=True); time.sleep(60)"
    log = tmp_path / "log"

    with TrainerProcess(python(code), log=log) as it:
        wait_for(lambda: log.stat().st_size > 20_000)
        it.cap_log()

    text = log.read_text()
    assert text.startswith("[19001 bytes left out]\n")
    assert len(text) < 3_000
