"""Tools that a policy calls, and environments that users write."""

import json
import textwrap
import threading

import pytest
from transformers.utils import get_json_schema

from trainer.data import Row
from trainer.rewards.judge import limited_to
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.pool import SandboxFailed
from trainer.rollout.environments import EnvironmentFailed, Reply, Said
from trainer.rollout.tools import (
    MAX_RESULT_CHARS,
    PythonEnvironment,
    ToolEnvironment,
    calculate,
    contents_of,
    definitions,
)
from trainer.types import ToolCall

ROW = Row(index=0, prompt="p", answer="5", columns={"low": 1, "high": 9})


def said(text: str = "", *calls: tuple[str, dict | str]) -> Said:
    return Said(
        text=f"<think>?</think>{text}",
        content=text,
        calls=tuple(ToolCall(name=name, arguments=value) for name, value in calls),
    )


def answered(environment, name: str, arguments: dict | str) -> ToolCall:
    (call,) = environment.reply(ROW, 7, [said("", (name, arguments))]).calls
    return call


# The built-in tools


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(3 + 5) * 7 - 1", "55"),
        ("1 / 3 + 1 / 6", "1/2"),
        ("0.1 + 0.2", "3/10"),
        ("2**10 // 3", "341"),
        ("6 × 7 − 2", "40"),
    ],
)
def test_calculator_is_exact(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "arguments",
    [
        {"expression": "__import__('os')"},
        {"expression": "1 / 0"},
        {"expression": "9**9**9**9"},
        {"expression": "9**1000*" * 6 + "1"},
        {"expression": "1+" * 300 + "1"},
        {"expression": 5},
        {"expression": "1", "b": 2},
        {},
        "1 + 1",
    ],
)
def test_calculator_answers_what_it_cannot_compute_with_an_error(arguments):
    environment = ToolEnvironment(["calculator"])

    call = answered(environment, "calculator", arguments)

    assert call.error
    assert not call.result
    assert environment.is_quick


def test_the_calculator_alone_needs_no_sandbox(monkeypatch):
    monkeypatch.setattr(pool, "ask", None)
    monkeypatch.setattr(pool, "sandbox_level", None)
    environment = ToolEnvironment(["calculator"])

    reply = environment.reply(
        ROW, 0, [said("", ("calculator", {"expression": "3 + 5"})), said("8")]
    )

    assert answered(environment, "calculator", {"expression": "3 + 5"}).result == "8"
    assert reply == Reply(is_done=True)


@pytest.fixture(scope="module")
def interpreter() -> ToolEnvironment:
    return ToolEnvironment(["python"])


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("print(1)\nprint('é')", "1\né\n"),
        ("x = 1", "The program printed nothing."),
        ("print('\\0')", "\N{REPLACEMENT CHARACTER}\n"),
    ],
)
def test_python_gives_what_a_program_prints(interpreter, code, result):
    assert answered(interpreter, "python", {"code": code}).result == result


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('a')\n1 / 0", "by zero (line 2)\nIt printed:\na\n"),
        ("print('a'", "SyntaxError"),
        ("exit(3)", "code 3"),
        ("import os\nos.kill(os.getpid(), 9)", "python"),
        ("open('/etc/passwd')", "line 1"),
        ("import socket\nsocket.socket()", "PermissionError"),
        ("import numpy", "ModuleNotFoundError"),
    ],
)
def test_a_failing_program_gives_an_error(interpreter, code, words):
    assert words in answered(interpreter, "python", {"code": code}).error


def test_a_program_that_hangs_is_ended():
    environment = ToolEnvironment(["python"], call_seconds=0.3)

    assert "0.3 s" in answered(environment, "python", {"code": "while 1: pass"}).error


def test_much_output_is_cut_with_a_note(interpreter):
    result = answered(interpreter, "python", {"code": "print('é' * 10**7)"}).result

    assert len(result) < MAX_RESULT_CHARS + 100
    assert f"{MAX_RESULT_CHARS:,} of" in result


def test_a_program_imports_the_packages_that_are_named():
    environment = ToolEnvironment(["python"], packages=["numpy"])

    call = answered(environment, "python", {"code": "import numpy\nprint(numpy.e > 2)"})

    assert call.result == "True\n"


# Functions of the user

SOURCE = '''
import asyncio, random, time

async def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: first
        b: second
    """
    await asyncio.sleep(0)
    return a + b

def look(key: str, row, seed) -> list:
    """Look something up.

    Args:
        key: the column
    """
    return [row[key], seed, random.randint(0, 10**9)]

def hang() -> str:
    """Hang."""
    time.sleep(60)

def shout() -> str:
    """Print 10 MB."""
    for _ in range(10):
        print("x" * 10**6)
    return "y" * 10**7

def split() -> str:
    """Fork."""
    import os
    return str(os.fork())

def fail() -> str:
    """Raise."""
    raise ValueError("\\ud800\\0")

def read() -> str:
    """Read a file."""
    return open("/etc/passwd").read()

def nonsense() -> object:
    """Return what is no JSON."""
    return object()

def endless() -> list:
    """Return a list that holds itself."""
    values = []
    values.append(values)
    return values

def leave() -> str:
    """End the process."""
    import os
    os._exit(0)

def forge() -> str:
    """Write a reply of its own."""
    import os
    data = b'{"text": 5}'
    os.write(4, len(data).to_bytes(4, "little") + data)
    os._exit(0)

def half() -> dict:
    """Return half a character, and a nan."""
    return {"a": "\\ud800\\0", "b": float("nan"), "c": None}

def untyped(a) -> str:
    """No type.

    Args:
        a: this
    """

def _hidden() -> str:
    """Not a tool."""
'''
NAMES = [
    "add", "look", "hang", "shout", "split", "fail", "read", "nonsense", "endless",
    "leave", "forge", "half",
]  # fmt: skip


@pytest.fixture(scope="module")
def toolbox() -> ToolEnvironment:
    return ToolEnvironment([*NAMES, "calculator"], source=SOURCE)


def test_a_users_function_gives_text_or_json(toolbox):
    assert not toolbox.is_quick
    assert answered(toolbox, "add", {"a": 1}).result == "3"
    assert answered(toolbox, "half", {}).result == (
        '{"a": "\N{REPLACEMENT CHARACTER}\\u0000", "b": NaN, "c": null}'
    )


def test_a_tool_gets_row_and_seed_where_it_asks_for_them(toolbox):
    call = answered(toolbox, "look", {"key": "high", "seed": 1})
    both = [("look", {"key": "high"})] * 2
    same, other = toolbox.reply(ROW, 7, [said("", *both)]).calls

    assert json.loads(call.result)[:2] == json.loads(other.result)[:2] == [9, 7]
    assert call.result == same.result != other.result
    (definition,) = [t for t in toolbox.tools if t["function"]["name"] == "look"]
    assert list(definition["function"]["parameters"]["properties"]) == ["key"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("add", {}, "argument: 'a'"),
        ("add", {"a": 1, "c": 2}, "'c'"),
        ("add", {"a": "1"}, "TypeError"),
        ("add", '{"a": 1', '{"a": 1'),
        ("split", {}, "PermissionError"),
        (
            "fail",
            {},
            "ValueError: \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} (",
        ),
        ("read", {}, "Error"),
        ("nonsense", {}, "a object"),
        ("endless", {}, "Circular"),
        ("leave", {}, "without a result"),
        ("forge", {}, "as text"),
        ("untyped", {"a": 1}, '"untyped"'),
        ("_hidden", {}, '"_hidden"'),
        ("x" * 10**6, {}, "calculator"),
        ("", {}, "calculator"),
    ],
)
def test_a_call_that_fails_has_an_error_that_the_policy_reads(
    toolbox, name, arguments, words
):
    reply = toolbox.reply(ROW, 0, [said("", (name, arguments))])

    (call,), (message,) = reply.calls, reply.messages
    assert words in call.error
    assert not call.result
    assert len(call.error) < 1_000
    assert call.seconds is not None
    assert message["role"] == "tool"
    assert message["name"] == name[:80]
    assert call.error in message["content"]
    assert json.dumps(message, ensure_ascii=False).encode()
    assert not reply.is_done


def test_a_tool_that_hangs_is_ended():
    environment = ToolEnvironment(["hang"], source=SOURCE, call_seconds=0.3)

    assert "0.3 s" in answered(environment, "hang", {}).error


def test_a_long_result_is_cut_with_a_note(toolbox):
    result = answered(toolbox, "shout", {}).result

    assert len(result) < MAX_RESULT_CHARS + 100
    assert result.endswith(f"{MAX_RESULT_CHARS:,} of 10,000,000 characters")


def test_the_calls_of_a_turn_are_answered_in_order(toolbox):
    turn = said(
        "", ("add", {"a": 1}), ("fail", {}), ("calculator", {"expression": "2"})
    )

    reply = toolbox.reply(ROW, 0, [said("earlier", ("hang", {})), turn])

    assert [call.result for call in reply.calls] == ["3", "", "2"]
    assert [message["name"] for message in reply.messages] == [
        "add", "fail", "calculator",
    ]  # fmt: skip
    assert reply.messages[0]["content"] == "3"
    assert reply.messages[1]["content"].startswith("Error: ")


def test_a_call_that_the_parser_refused_keeps_its_error(toolbox):
    call = ToolCall(name="add", arguments="{", error="line 1 is not JSON")
    turn = Said(text="", content="", calls=(call,))

    assert toolbox.reply(ROW, 0, [turn]).calls[0].error == "line 1 is not JSON"


def test_a_lost_sandbox_fails_the_episode(toolbox, monkeypatch):
    def lose(*_, **__):
        raise SandboxFailed("it is gone")

    monkeypatch.setattr(pool, "ask", lose)

    with pytest.raises(EnvironmentFailed, match="it is gone") as raised:
        answered(toolbox, "add", {"a": 1})
    assert not raised.value.is_timeout


def test_a_call_after_the_episodes_time_is_a_time_out(toolbox):
    with limited_to(0), pytest.raises(EnvironmentFailed) as raised:
        answered(toolbox, "add", {"a": 1})

    assert raised.value.is_timeout


def test_threads_call_tools_at_once(toolbox):
    results = {}

    def call(number: int) -> None:
        with pool.asking_for(f"episodes {number % 2}"):
            results[number] = answered(toolbox, "add", {"a": number}).result

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == {number: str(number + 2) for number in range(6)}


@pytest.mark.parametrize(
    ("names", "source", "words"),
    [
        (["search"], "", '"search"'),
        (["search"], "def other(): pass", '"search"'),
        (["untyped"], SOURCE, "type hint"),
        (["_hidden"], SOURCE, '"_hidden"'),
        (["f"], "def f(a: int): pass", "docstring"),
        (["f"], "def f(a: int):\n '''F.'''", "'a'"),
        (["f"], "def f(*a: int):\n '''F.'''", "a cannot be given by name"),
        (
            ["f"],
            "def f(a: bytes):\n '''F.\n\n Args:\n  a: x'''",
            "<class 'bytes'> to a JSON schema",
        ),
        (["f"], "def f(a: Nothing):\n '''F.'''", "Nothing"),
        (["f"], "def f(:", "SyntaxError"),
        (["f"], "1 / 0", "by zero (line 1)"),
        (["f"], "import os\nos._exit(0)", "without a result"),
    ],
)
def test_a_tool_that_cannot_be_had_is_refused(names, source, words):
    with pytest.raises(ValueError, match=r".") as raised:
        ToolEnvironment(names, source=source)

    assert words in str(raised.value)


def test_a_source_that_hangs_is_refused(monkeypatch):
    monkeypatch.setattr("trainer.rollout.tools._CONTENTS_SECONDS", 0.3)

    with pytest.raises(ValueError, match=r"0\.3 s"):
        ToolEnvironment(["f"], source="while True: pass")


def test_an_unknown_package_is_refused():
    with pytest.raises(ValueError, match="torch"):
        ToolEnvironment(["python"], packages=["torch"])


def test_a_users_function_stands_before_a_built_in_tool_of_its_name():
    source = "def calculator(n: int):\n '''Mine.\n\n Args:\n  n: number'''\n return n"
    environment = ToolEnvironment(["calculator"], source=source)

    assert answered(environment, "calculator", {"n": 3}).result == "3"


TYPES = '''
import enum
from typing import Any, Dict, List, Literal, Optional, Tuple, Union

Unit = Literal["m", "km"]

class Color(enum.Enum):
    RED = "red"
    ONE = 1

def plain(a: int, b: float, c: str, d: bool) -> str:
    """Several lines
    of what it does.

    Args:
        a: first
        b: second, which
            goes on
        c: third

        d: fourth
    Returns:
        A text.
    """

def defaults(a: int, b: int = 3, *, c: str = "x") -> None:
    """Default.

    Args:
        a: x
        b: y
        c: z

    Raises:
        ValueError: never
    """

def lists(a: list[int], b: List[str], c: list, d: list[list[float]]):
    """Lists.

    Args:
        a: x
        b: x
        c: x
        d: x
    """

def dicts(a: dict[str, int], b: Dict[str, list[int]], c: dict, d: Dict):
    """Dicts.

    Args:
        a: x
        b: x
        c: x
        d: x
    """

def tuples(a: tuple[int, str], b: Tuple[bool, None], c: tuple):
    """Tuples.

    Args:
        a: x
        b: x
        c: x
    """

def unions(
    a: int | str, b: Optional[int], c: Union[list[int], str], d: None | str = None
):
    """Unions.

    Args:
        a: x
        b: x
        c: x
        d: x
    """

def literals(a: Unit, b: Literal[1, 2], c: Literal["a", 1, None, True]):
    """Literals.

    Args:
        a: x
        b: x
        c: x
    """

def enums(a: Color, b: list[Color], c: Color | None = None):
    """Enums.

    Args:
        a: x
        b: x
        c: x
    """

def written(a: "int", b: "Unit | None" = None) -> "list[str]":
    """Types as text.

    Args:
        a: x
        b: x

    Returns:
        Names.
    """

def choices(a: str, b: int):
    """Choices.

    Args:
        a: x (choices: ["tea", " coffee"])
        b: y (choices: [1, 2])
    """

def anything(a: Any, b: dict[str, Any]) -> Color:
    """Any.

    Args:
        a: x
        b: x
    """

async def later(a: int) -> bytes:
    """Async, with a result that has no schema.

    Args:
        a: x
    """
'''


def test_definitions_are_those_of_transformers():
    functions: dict = {}
    exec(TYPES, functions)  # noqa: S102 - it is ours
    signatures = contents_of(TYPES).functions

    schemas = definitions(list(signatures), signatures)

    assert len(schemas) == 12
    assert schemas == [get_json_schema(functions[name]) for name in signatures]


# Environments of the user

REPLY = """
import random

def number_of(row, seed):
    return random.Random(seed).randint(row["low"], row["high"])

def open(row, seed):
    return f"A number from {row['low']} to {row['high']}."

async def reply(row, seed, said):
    guess, number = int(said[-1]["content"]), number_of(row, seed)
    if guess == number:
        share = 1 / len(said)
        return {"text": "hit", "done": True, "reward": 1, "metrics": {"share": share}}
    return "higher" if guess < number else "lower"
"""
STEP = """
import random

class Base:
    def reset(self, low, high, seed):
        self.number = random.Random(seed).randint(low, high)
        self.num_turns = 0
        return f"A number from {low} to {high}."

class Game(Base):
    def step(self, text):
        self.num_turns += 1
        guess = int(text)
        if guess == self.number:
            return {
                "text": "hit", "done": True, "reward": 1,
                "metrics": {"share": 1 / self.num_turns},
            }
        return "higher" if guess < self.number else "lower"
"""
GYMNASIUM = """
import random

class Game:
    def reset(self, *, low, high, seed):
        self.number = random.Random(seed).randint(low, high)
        return f"A number from {low} to {high}.", {}

    def step(self, action):
        if int(action) == self.number:
            return "hit", 1.0, True, False, {}
        return "higher" if int(action) < self.number else "lower", 0.0, False, False, {}
"""
TRL = '''
import random

class Game:
    def reset(self, **row) -> str | None:
        self.number = random.randint(row["low"], row["high"])
        self.num_turns = 0

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: the guess

        Returns:
            higher, lower or hit
        """
        self.num_turns += 1
        if number < 0:
            raise ValueError("negative")
        return "hit" if number == self.number else f"{self.num_turns} turns"

    def _note(self) -> None:
        """Not a tool."""

    def get_reward(self) -> float:
        return self.num_turns / 10
'''


def played(environment, turns: list[Said], *, seed: int = 3) -> list[Reply]:
    return [
        environment.reply(ROW, seed, turns[:number])
        for number in range(1, len(turns) + 1)
    ]


def test_a_class_with_state_plays_as_a_function_without():
    guesses = [said(str(number)) for number in range(1, 10)]
    reply, step = PythonEnvironment(REPLY), PythonEnvironment(STEP)
    turns = played(reply, guesses)

    assert played(step, guesses) == turns
    assert (
        list(step.open(ROW, 3))
        == list(reply.open(ROW, 3))
        == [{"role": "user", "content": "A number from 1 to 9."}]
    )
    (hit,) = [turn for turn in turns if turn.is_done]
    number = turns.index(hit) + 1
    assert hit.messages == ({"role": "user", "content": "hit"},)
    assert (hit.reward, hit.metrics) == (1.0, {"share": 1 / number})
    assert turns[0].messages[0]["content"] in ("higher", "hit")
    assert {turn.reward for turn in turns} == {None, 1.0}


def test_a_class_of_gymnasium_is_played():
    environment = PythonEnvironment(GYMNASIUM)
    turns = played(environment, [said(str(number)) for number in range(1, 10)])

    assert environment.open(ROW, 3)[0]["content"] == "A number from 1 to 9."
    assert sum(turn.reward for turn in turns) == 1.0
    assert [turn.is_done for turn in turns].count(True) == 1


def test_methods_of_a_trl_environment_are_tools():
    environment = PythonEnvironment(TRL)
    turns = [
        said("", ("guess", {"number": 0}), ("guess", {"number": -1})),
        said("", ("_note", {}), ("guess", {"n": 1}), ("guess", "{")),
        said("", ("guess", {"number": 0})),
        said("done"),
    ]

    replies = played(environment, turns)

    assert [tool["function"]["name"] for tool in environment.tools] == ["guess"]
    assert environment.open(ROW, 3) == ()
    assert [call.result for call in replies[0].calls] == ["1 turns", ""]
    assert "negative" in replies[0].calls[1].error
    assert all(call.error for call in replies[1].calls)
    # the first turn's two calls are played again, the second's reach no method
    assert replies[2].calls[0].result == "3 turns"
    assert replies[2].messages[0]["content"] == "3 turns"
    assert [reply.is_done for reply in replies] == [False, False, False, True]
    assert [reply.episode_reward for reply in replies] == [0.2, 0.2, 0.3, 0.3]


def test_random_numbers_of_a_class_follow_the_seed():
    environment = PythonEnvironment(
        "import random\nclass Game:\n"
        " def reset(self): self.n = random.random()\n"
        " def step(self, text): return str(self.n)"
    )

    texts = [environment.reply(ROW, seed, [said()]).messages for seed in (1, 2, 1)]

    assert texts[0] == texts[2] != texts[1]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("None", "neither said"),
        ("''", "neither said"),
        ("{}", "neither said"),
        ("{'text': 'a', 'reward': 'high'}", "reward"),
        ("{'text': 'a', 'reward': float('nan')}", "reward"),
        ("{'text': 'a', 'reward': True}", "reward"),
        ("{'text': 'a', 'is_done': True}", "is_done"),
        ("{'text': 'a', 'done': 1}", "done"),
        ("{'text': 5}", "text"),
        ("{'messages': 'a'}", "messages"),
        ("[{'role': 'assistant', 'content': 'a'}]", "role"),
        ("[{'role': 'user'}]", "content"),
        ("5", "5"),
        ("object()", "neither text nor JSON"),
        ("1 / 0", "by zero (line 1)"),
        ("said[9]", "IndexError"),
        ("'x' * 2**21", "too much"),
        ("reply(row, seed, said)", "RecursionError"),
        ("exit()", "SystemExit"),
        ("__import__('os')._exit(0)", "without a result"),
        ("__import__('os').fork()", "PermissionError"),
        ("open('/etc/passwd')", "Error"),
    ],
)
def test_a_wrong_answer_fails_the_episode_and_says_why(value, words):
    environment = PythonEnvironment(f"def reply(row, seed, said): return {value}")

    with pytest.raises(EnvironmentFailed) as raised:
        environment.reply(ROW, 0, [said("1")])

    assert words in str(raised.value)
    assert len(str(raised.value)) < 1_000
    assert str(raised.value).encode()
    assert not raised.value.is_timeout


def test_an_answer_of_messages_and_numbers_of_numpy_is_read():
    environment = PythonEnvironment(
        textwrap.dedent("""
            import numpy
            def reply(row, seed, said):
                return {
                    "messages": [{"role": "user", "content": "\\ud800\\0"}],
                    "done": numpy.bool_(True),
                    "reward": numpy.float32(0.5),
                    "episode_reward": 2,
                    "metrics": {"a b": numpy.int64(3), "c": "text"},
                }
        """)
    )

    assert environment.reply(ROW, 0, [said()]) == Reply(
        messages=({"role": "user", "content": "\ufffd\ufffd"},),
        is_done=True,
        reward=0.5,
        episode_reward=2.0,
        metrics={"a_b": 3.0},
    )


def test_an_environment_that_hangs_times_out():
    environment = PythonEnvironment(
        "def reply(row, seed, said):\n while True: pass", call_seconds=0.3
    )

    with pytest.raises(EnvironmentFailed) as raised:
        environment.reply(ROW, 0, [said()])

    assert raised.value.is_timeout


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "neither"),
        ("def answer(row): pass", "neither"),
        ("class A:\n def reset(self): ...\nclass B(A): ...\nclass C(A): ...", "B, C"),
        ("class A:\n def reset(self): ...\n def f(self, a): '''F.'''", "type hint"),
        ("raise SystemExit", "SystemExit"),
    ],
)
def test_a_source_without_an_environment_is_refused(source, words):
    with pytest.raises(ValueError, match=words):
        PythonEnvironment(source)


@pytest.mark.parametrize("source", [REPLY, STEP, TRL])
def test_the_check_accepts_equal_answers(source):
    PythonEnvironment(source).check(ROW)


@pytest.mark.parametrize(
    "source",
    [
        "import time\ndef reply(row, seed, said): return str(time.time_ns())",
        "import os\ndef reply(row, seed, said): return os.urandom(4).hex()",
        "def reply(row, seed, said): return str(id([]))",
        "import uuid\ndef open(row, seed): return str(uuid.uuid4())\n"
        "def reply(row, seed, said): return 'a'",
    ],
)
def test_the_check_refuses_answers_that_differ(source):
    with pytest.raises(ValueError, match="differ"):
        PythonEnvironment(source).check(ROW)
