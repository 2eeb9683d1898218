"""What is done once in the zygote so that no call does it anew.

Python rewrites a function's code while it runs for the first times, and fills caches.
A forked child pays for each page that it writes to by a copy, so whatever a call does
is done here before, with code of ours alone.
"""

from __future__ import annotations

import io
import json
import os
import sys

from trainer.rewards.sandbox.inside import functions, programs, seccomp, talking
from trainer.rewards.sandbox.inside.frames import frame

_TIMES = 24  # code is rewritten after 8 calls, and may be given up on and tried again
_SOURCE = """\
import math, re
def reward(prompt, completion, answer, columns):
    words = [word.lower() for word in completion.split()]
    print(len(words), f"{answer}")
    found = re.search("word", completion)
    return 1.0 if found and answer in words and math.isfinite(1.5) else 0.0
def add(a, b):
    return a + b
"""
_ARGUMENTS = {"prompt": "?", "completion": "a word", "answer": "word", "columns": {}}


def warm_up(template: bytes) -> None:
    stdout = sys.stdout
    try:
        with open(os.devnull, "w", encoding="utf-8") as sys.stdout:
            for _ in range(_TIMES):
                _call(template)
    finally:
        sys.stdout = stdout
    talking.prepare_outputs()


def _call(template: bytes) -> None:
    seccomp.own_filter(template, pid=1)
    question = json.loads(json.dumps({"source": _SOURCE, "arguments": _ARGUMENTS}))
    functions.number(functions.judge(question["source"], question["arguments"]))
    names = programs.main_names()
    programs.attempt(_SOURCE, programs.SOURCE, names, is_value=False)
    for code in ("add(1, 2) == 3", "add([1], [2.5])", "add('a', 'b')", "1 / 0"):
        reply = programs.attempt(code, "<test>", names, is_value=True)
        io.BytesIO().write(frame(json.dumps(reply).encode()))
