"""Starts a program in a cgroup, as the first to be killed when memory runs out.

Stand-alone: `python -I launch.py PROCS PROGRAM ARGUMENTS`. PROCS is the group's
cgroup.procs, or "" if there is none.
"""

import os
import sys

if __name__ == "__main__":
    cgroup_path, *command = sys.argv[1:]
    for path, text in (("/proc/self/oom_score_adj", "1000"), (cgroup_path, "0")):
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
        except OSError:
            continue  # a machine that does not let it; the other limits hold
    os.execv(command[0], command)  # noqa: S606 - no shell, our own command
