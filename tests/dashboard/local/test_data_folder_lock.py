import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.local.data_folder import LocalFault, hold_folder

HOLD = """
import pathlib, sys, time
from dashboard.local.data_folder import hold_folder
with hold_folder(pathlib.Path(sys.argv[1]), address="http://127.0.0.1:8000"):
    print("held", flush=True)
    time.sleep(60)
"""


def hold_elsewhere(folder: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_start_names_the_running_process(tmp_path):
    with hold_elsewhere(tmp_path) as holder:
        with (
            pytest.raises(LocalFault) as fault,
            hold_folder(tmp_path, address="http://127.0.0.1:8001"),
        ):
            pass
        holder.kill()

    assert f"process {holder.pid}, http://127.0.0.1:8000" in str(fault.value)


def test_a_killed_holder_leaves_the_folder_free(tmp_path):
    with hold_elsewhere(tmp_path) as holder:
        holder.kill()

    with hold_folder(tmp_path, address="http://127.0.0.1:8001"):
        pass
