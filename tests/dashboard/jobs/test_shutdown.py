"""SIGTERM to a process of a worker's pool: a wish in a task, the end without one."""

import signal
import subprocess
import sys

SENT = """
import os, signal
from dashboard.jobs import shutdown
shutdown.begin_task()
os.kill(os.getpid(), signal.SIGTERM)
print(shutdown.is_announced(), flush=True)
shutdown.end_task()
print("not reached", flush=True)
"""
UNTOLD = """
import os, signal
from dashboard.jobs import shutdown
shutdown.begin_task()
print(shutdown.is_announced(), flush=True)
shutdown.end_task()
print("goes on", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


def run(code: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.returncode, done.stdout


def test_a_task_sees_the_shutdown_and_its_process_ends_afterwards():
    assert run(SENT) == (-signal.SIGTERM, "True\n")


def test_between_tasks_a_shutdown_ends_the_process():
    assert run(UNTOLD) == (-signal.SIGTERM, "False\ngoes on\n")
