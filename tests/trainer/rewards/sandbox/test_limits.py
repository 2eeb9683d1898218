"""What a call may take, as the kernel has it, and what each limit does alone.

On level A by `mark.slow`, which the fixture gives.
"""

import json
import signal

from trainer.rewards.sandbox.limits import Limits

READ = """
import json, resource
names = ("CPU", "AS", "NOFILE", "FSIZE", "CORE")
print(json.dumps([resource.getrlimit(getattr(resource, f"RLIMIT_{n}")) for n in names]))
"""
MEBIBYTE = 2**20


def test_limits_are_the_kernels(caller):
    answer = caller.call(READ, wall_seconds=2.5, memory_mb=300)

    assert json.loads(answer.stdout) == [
        [3, 4],  # of which a call may ignore the first
        [300 * MEBIBYTE] * 2,
        [64, 64],
        [MEBIBYTE] * 2,
        [0, 0],
    ]


def test_no_limit_is_raised_from_inside(caller):
    body = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))"

    assert caller.error(body)


def test_a_call_opens_sixty_four_descriptors_and_no_more(caller):
    body = """
    import os
    n = 0
    try:
        while True:
            os.dup(1)
            n += 1
    except OSError:
        return n
    """

    reply = caller.reply(body)

    assert reply is not None
    assert 0 < reply["value"] < 64


def test_the_processors_time_ends_a_call_by_itself(caller, monkeypatch):
    """As where several threads take more of it than the clock shows."""
    header = Limits(wall_seconds=50).as_header()
    header["limits"]["cpu_seconds"] = 1
    monkeypatch.setattr(Limits, "as_header", lambda limits: header)

    answer = caller.call("while True: pass", wall_seconds=50)

    assert (answer.end, answer.code) == ("ended", -signal.SIGXCPU)
    assert answer.cpu_seconds < 30


def test_the_clock_ends_a_call_within_half_a_second(caller):
    # The best of several: the others tell how busy the machine is.
    for body in ("while True: pass", "import time; time.sleep(60)"):
        answers = [caller.call(body, wall_seconds=0.1) for _ in range(3)]

        assert {answer.end for answer in answers} == {"time"}
        assert 0.1 <= min(answer.wall_seconds for answer in answers) < 0.6
