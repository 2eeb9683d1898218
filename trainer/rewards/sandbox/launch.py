"""Starts a program that the kernel ends first when memory runs out.

By itself, without a package: `python -I launch.py PROGRAM ARGUMENTS`.
"""

import os
import sys

if __name__ == "__main__":
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")
    except OSError:
        pass  # a machine that does not let it say so; the limits hold all the same
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell, our own command
