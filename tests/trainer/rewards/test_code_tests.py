"""Code of a completion against a row's tests, honest code and code that cheats."""

from typing import Any

import pytest

from tests.trainer.rewards.scores import score, scored
from trainer.rewards.code_running import Asserts, plan_of_asserts

ADD = "def add(a, b):\n    return a + b"
TWO = ["assert add(2, 3) == 5", "assert add(-1, 1) == 0"]


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\n"


def judged(code: str, tests: Any, **params: Any) -> float | None:
    columns = {"tests": tests, "entry_point": params.pop("entry_point", None)}
    return score("code_tests", fenced(code), None, columns, **params)


LEAVES = "import os\ndef add(a, b):\n    if a == 2: os._exit(0)\n    return a + b"


def test_the_score_is_the_share_of_tests_that_pass():
    wrong = [
        (code, share, found)
        for code, share in [
            (ADD, 1.0),
            ("def add(a, b): return 5", 0.5),
            ("def add(a, b): return None", 0.0),
            ("def add(a, b): return 1 / 0", 0.0),
            ("def sub(a, b): return 5", 0.0),
            ("this is no Python", 0.0),
            ("raise SystemExit", 0.0),
            ("import os; os._exit(0)", 0.0),
            (LEAVES, 0.5),
            ("print('add')", 0.0),
        ]
        if (found := judged(code, TWO)) != share
    ]

    assert wrong == []


def test_all_or_nothing():
    assert judged("def add(a, b): return 5", TWO, credit="all") == 0.0
    assert judged(ADD, TWO, credit="all") == 1.0


def test_a_completion_without_code_scores_0():
    assert score("code_tests", "I cannot.", None, {"tests": TWO}) == 0.0


DOCSTRING = 'def add(a, b):\n    """\n    ```\n    add(1, 2)\n    ```\n    """'
NARROW = 'def add(a, b):\n  """\n  ```python\n  add(1, 2)\n  ```\n  """\n  return a + b'


@pytest.mark.parametrize(
    "completion",
    [
        fenced(ADD) + "Output:\n```\n3\n```\n",
        fenced(ADD) + "Run it:\n```bash\npython add.py\n```\n",
        fenced("x = 1") + fenced(ADD),
        fenced(f"{DOCSTRING}\n    return a + b"),
        fenced(NARROW),
        fenced('def add(a, b):\n    "See ```add```."\n    return a + b'),
        f"```Python\r\n{ADD}\r\n```\r\n",
        f"````markdown\n```py\n{ADD}\n```\n````",
        f"~~~python\n{ADD}\n~~~",
        f"Code: ```python\n{ADD}\n```\nOutput:\n```\n3\n```",
        f"Use ``` fences.\n```\n{ADD}\n```\n",
        f"```python\nx = (\nNo.\n```python\n{ADD}\n```",
        "1. So:\n   ```python\n   def add(a, b):\n       return a + b\n   ```",
        f"```json\n[1]\n```\n```\n{ADD}\n```",
        f"```python:main.py\n{ADD}\n```\nOutput:\n```\n3\n```",
        f"```{{.python}}\n{ADD}\n```\nOutput:\n```\n3\n```",
        f"```ipython3\n{ADD}\n```\nOutput:\n```\n3\n```",
        f"```python\n{ADD}\n```\nOutput:\n```python-traceback\n3\n```",
        f"```python\n{ADD}\n```\nNow:\n```python\ndef add(",
    ],
)
def test_the_code_is_the_last_block_of_python(completion):
    tests = {"tests": "assert add(2, 3) == 5"}

    assert score("code_tests", completion, None, tests) == 1.0


def test_an_earlier_block_of_python_does_not_count():
    tests = {"tests": "assert add(2, 3) == 5"}
    completion = fenced(ADD) + fenced("def add(a, b): return a")

    assert score("code_tests", completion, None, tests) == 0.0


@pytest.mark.parametrize(
    "guarded", ["print(add(int(input()), 2))", "import sys\n    print(sys.argv[1])"]
)
def test_a_main_guard_does_not_run_for_tests_of_functions(guarded):
    code = f"{ADD}\nif __name__ == '__main__':\n    {guarded}"

    assert judged(code, TWO) == 1.0
    assert judged(code, {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}) == 1.0


def test_a_main_guard_starts_a_program():
    code = f"{ADD}\nif __name__ == '__main__':\n    print(add(int(input()), 2))"

    assert judged(code, [{"input": "1", "output": "3"}]) == 1.0


def test_a_main_guard_of_the_tests_starts_them():
    tests = "if __name__ == '__main__':\n    assert add(1, 2) == 4"

    assert judged(ADD, tests) == 0.0
    assert judged(ADD, tests.replace("4", "3")) == 1.0


def test_code_keeps_its_own_annotations():
    code = """
from dataclasses import dataclass
@dataclass
class Pair:
    a: int
    b: int = 0
def add(a, b): return Pair(a).a + b if Pair.__annotations__["a"] is int else None
"""
    postponed = "from __future__ import annotations" + code.replace(
        "is int", "== 'int'"
    )

    assert judged(code, TWO) == 1.0
    assert judged(postponed, TWO) == 1.0


def test_setup_columns_run_before_the_tests():
    columns = {
        "tests": ["assert f(N(3)) == 3", "assert f(N(-1)) == -math.floor(1.5)"],
        "test_imports": ["import math", "import re"],
        "test_setup_code": "class N:\n    def __init__(self, v): self.v = v",
    }
    code = fenced("def f(t): return t.v")

    assert score("code_tests", code, None, columns) == 1.0
    assert score("code_tests", code, None, columns | {"test_setup_code": ""}) == 0.0


def test_a_loop_without_end_fails_what_is_left():
    code = "def add(a, b):\n    while a < 0: pass\n    return a + b"

    assert judged(code, TWO, timeout_seconds=1) == 0.5


def test_asserts_mean_what_they_mean_in_python():
    wrong = [
        (tests, share, found)
        for tests, share in [
            ("assert add(1, 2) == 3\nassert add(1, 2) == 4", 0.5),
            (
                [
                    "assert add(1, 2) == 3\nassert add(1, 2) == 4",
                    "assert add(0, 0) == 0",
                ],
                0.5,
            ),
            ("def check(candidate):\n    assert candidate(1, 2) == 3\ncheck(add)", 1.0),
            ("def test_it():\n    assert add(1, 2) == 3\n\ntest_it()", 1.0),
            ("expected = [1, 2]\nassert add([1], [2]) == expected", 1.0),
            ("for a, s in [(1, 2), (2, 5)]:\n    assert add(a, 1) == s", 0.5),
            ("assert add(1, 2) == 3 and add(1, 2) != 4", 1.0),
            ("assert add(1, 2) == 4 or add(1, 2) == 3", 1.0),
            ("assert not add(0, 0)", 1.0),
            ("assert 2 < add(1, 2) <= 3", 1.0),
            ("assert add(1, 2) in (3, 4)", 1.0),
            ("assert add(1, 2) is not None", 1.0),
            ("assert abs(add(0.1, 0.2) - 0.3) < 1e-9", 1.0),
            ("assert abs(add(0.1, 0.2) - 0.4) < 1e-9", 0.0),
            ("import math\nassert math.isclose(add(0.1, 0.2), 0.3)", 1.0),
            ("import math\nassert add(math.pi, 0) == math.pi", 1.0),
            ("assert add((1,), (2,)) == [1, 2]", 0.0),
            ("assert add((1,), (2,)) == (1, 2)", 1.0),
            ("assert add({1}, 0) == {1}", 0.0),
            ("assert add(True, 0) == 1.0", 1.0),
            ("assert add('a', 'b') < 'b'", 1.0),
            (
                "try:\n    add(1, 'x')\n    assert False\nexcept TypeError:\n    pass",
                1.0,
            ),
        ]
        if (found := judged(ADD, tests, entry_point="add")) != share
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("tests", "num_inside"),
    [
        ("assert add(1, 2) == 3 and not add(0, 0)", 0),
        ("assert abs(add(1, 2) - 3) < 1", 0),
        ("for a, s in [(1, 2), (2, 3)]:\n    assert add(a, 1) == s", 0),
        ("assert isinstance(add(1, 2), int)", 1),
        ("assert all(add(n, 1) == n + 1 for n in range(3))", 1),
        ("for n in range(3):\n    assert add(n, 1) == n + 1", 1),
    ],
)
def test_tests_that_the_code_could_decide_are_counted(tests, num_inside):
    found = scored("code_tests", fenced(ADD), None, {"tests": tests})

    assert found.total == 1.0
    assert ("could cheat" in found.logs["it"]) == bool(num_inside)
    refused = judged(ADD, tests, judged_inside="refused")
    assert (refused is None) == bool(num_inside)


def test_expected_values_are_never_sent():
    text = """
expected = 98765
def check(candidate):
    wanted = [98765]
    assert candidate(1) == 98765
    assert 98765 == candidate(2) and candidate(3) != 98765
    assert abs(candidate(4) - 98765) < 1
    assert candidate(5) == wanted
assert add(0) == expected, "98765"
assert add(9) == int("98765")
"""

    plan = plan_of_asserts(Asserts(texts=(text,)), 20, "add")

    assert "98765" in str(plan.formulas)
    assert "98765" not in str(plan.steps)
    assert len(plan.formulas) == 6


EQUAL_TO_ALL = """
class Any(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __sub__(self, other): return 0
    def __abs__(self): return 0
    def __hash__(self): return 0
def add(a, b): return Any()
"""
LOOKS_FOR_IT = """
import sys, gc, re
def numbers(thing):
    if isinstance(thing, (list, dict, tuple, set)):
        thing = str(thing)
    if isinstance(thing, (str, bytes, int)):
        yield from map(int, re.findall(r"98[0-9][0-9][0-9]", str(thing)))
def add(a, b):
    frame = sys._getframe()
    found = set()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            found.update(numbers(value))
        frame = frame.f_back
    for thing in gc.get_objects():
        found.update(numbers(thing))
    return max(found, default=0)
"""
WRITES_REPLIES = """
import os, struct
def send(text):
    os.write(4, struct.pack("<I", len(text)) + text)
for _ in range(9):
    send(b'{}')
    send(b'{"value": true}')
"""
REPLACES = """
import builtins, json, sys
builtins.abs = lambda x: 0
builtins.sorted = lambda x: 98765
for module in list(sys.modules.values()):
    for name in ("encode", "_number", "dumps"):
        if hasattr(module, name):
            setattr(module, name, lambda *a, **k: {"o": ["x", True]})
def add(a, b): return 0
"""
PRINTS = "print('{\"value\": 98765}')\ndef add(a, b): print('98765')"
EXITS = "import atexit, os\natexit.register(os._exit, 0)\nos._exit(0)"


@pytest.mark.parametrize(
    "code",
    [EQUAL_TO_ALL, LOOKS_FOR_IT, WRITES_REPLIES, REPLACES, PRINTS, EXITS],
)
@pytest.mark.parametrize(
    "test",
    [
        "assert add(1, 2) == 98765",
        "assert abs(add(1, 2) - 98765) < 1",
        "assert add(1, 2) == 98765 and add(2, 3) == 98765",
    ],
)
def test_code_that_cheats_gains_nothing(code, test):
    plan_of_asserts.cache_clear()  # so that the plan is the call before the code's
    assert judged(code, [test, test]) == 0.0


def test_programs_read_and_print():
    code = "print(sum(map(int, input().split())))"
    pairs = [
        {"input": "1 2\n", "output": "3\n"},
        {"input": "2 2", "output": "4   \n\n"},
        {"input": "2 2", "output": "5"},
        {"input": "x", "output": ""},
    ]

    assert judged(code, pairs) == 0.5


def test_a_programs_input_may_be_longer_than_a_pipe():
    code = "import sys\nprint(len(sys.stdin.read()))"

    assert judged(code, [{"input": "x" * 200_000, "output": "200000"}]) == 1.0


def test_calls_of_a_named_function():
    tests = {"fn_name": "g", "inputs": [[1, 2], [3, 4]], "outputs": [[1, 2], [3, 5]]}

    assert judged("def g(a, b): return (a, b)", tests) == 0.5
    method = "class Solution:\n    def g(self, a, b): return [a, b]"
    assert judged(method, tests) == 0.5


@pytest.mark.parametrize(
    ("body", "outputs", "share"),
    [
        ("a + b", [[3], [7]], 1.0),
        ("[a + b]", [[3], [7]], 1.0),
        ("a + b", [[3], [8]], 0.5),
        ("a + b", [3, 8], 0.5),
        ("a + b", [[3], [7, 7]], 0.0),
        ("[[a + b]]", [[3], [7]], 0.0),
        ("[a, b]", [[[1, 2]], [[3, 4]]], 1.0),
    ],
)
def test_results_may_be_wrapped_in_a_list(body, outputs, share):
    tests = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": outputs}

    assert judged(f"def add(a, b): return {body}", tests) == share


def functional(given: Any, wanted: Any, metadata: Any) -> dict[str, Any]:
    names = {"input": given, "output": wanted, "metadata": metadata}
    return names | {"testtype": "functional"}


@pytest.mark.parametrize("metadata", [{"func_name": "add"}, '{"func_name": "add"}'])
def test_functional_cases_have_a_json_text_per_line(metadata):
    tests = [
        functional("1\n2", "3", metadata),
        functional("[1]\n[2]\n", "[1, 2]", metadata),
        functional('"a"\n"b"', '"ba"', metadata),
        functional([1, 2], 3, metadata),
    ]
    method = "class Solution:\n    def add(self, a, b): return a + b"

    assert judged(method, tests) == 0.75


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, 'no column "tests"'),
        ({"tests": []}, "no readable tests"),
        ({"tests": 3}, "no readable tests"),
        ({"tests": [{"input": 3}]}, "no readable tests"),
        ({"tests": [functional("1", "1", {})]}, "no readable tests"),
        ({"tests": [functional("1", "1", "?")]}, "no readable tests"),
        ({"tests": [functional("x y", "1", {"func_name": "f"})]}, "no readable tests"),
        ({"tests": [{"input": "1", "output": "1", "fn_name": "a b"}]}, "no readable"),
        (
            {
                "tests": [
                    {"input": [1], "output": 1, "fn_name": "f"},
                    {"input": "1", "output": "1"},
                ]
            },
            "no readable tests",
        ),
        ({"tests": "add(1, 2)"}, "have no assert"),
        ({"tests": "assert ("}, "test 1 is not Python"),
        ({"tests": "assert " + "(" * 5_000}, "test 1"),
        ({"tests": "assert " + "-" * 100_000 + "1 == add(1, 2)"}, "test 1"),
        ({"tests": "x" * 300_000}, "300,000 characters"),
    ],
)
def test_a_row_whose_tests_cannot_be_read_gets_no_score(columns, words):
    found = scored("code_tests", fenced(ADD), None, columns)

    assert found.total is None
    assert words in found.errors["it"]


def test_tests_are_cut_before_they_are_read():
    many = ["assert add(1, 1) == 2"] * 3 + ["assert (" + "x" * 10_000_000]

    assert judged(ADD, many, max_tests=3) == 1.0


def test_numbers_that_collide_cost_no_time():
    code = "def f(): return {n * (2**61 - 1) for n in range(1, 3000)}"

    assert judged(code, ["assert f() == {1, 2}"], timeout_seconds=20) == 0.0
