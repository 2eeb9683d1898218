"""Tools and environments in a sandbox, on each level, and what hostile ones get."""

import json

import pytest

from tests.trainer.rewards.sandbox.test_abuse import REFUSED
from trainer.rewards.sandbox.limits import REPLY_BYTES, Limits
from trainer.rollout.tools import Contents

PLAY = {"class": "", "row": {}, "seed": 0, "said": [{}]}


def reply(caller, kind: str, source: str, **question):
    answer = caller.slot.ask(
        kind, [{"source": source, **question}], Limits(wall_seconds=2)
    )
    return json.loads(answer.replies[0]) if answer.replies else answer


def call(caller, body: str, **arguments):
    source = f"def tool(**given):\n {body}"
    return reply(
        caller,
        "tool",
        source,
        name="tool",
        arguments=arguments,
        draw=0,
    )


@pytest.mark.parametrize(
    "body",
    [
        "import os; os.fork()",
        "import subprocess; subprocess.run(['/bin/true'])",
        "open('/etc/passwd').read()",
        "import os; os.listdir('/home')",
        "import socket; socket.create_connection(('127.0.0.1', 80))",
        "import os; os.kill(os.getppid(), 9)",
    ],
)
def test_a_tool_an_environment_and_their_description_get_nothing(caller, body):
    replies = [
        call(caller, body),
        reply(caller, "environment", f"def reply(said):\n {body}", **PLAY),
        reply(caller, "contents", body),
    ]

    assert all(each["error"].startswith(REFUSED) for each in replies)
    assert caller.slot.is_alive()


def test_a_tool_gets_its_arguments_and_its_text_is_cut(caller):
    assert call(caller, "return given", a=[1]) == {"text": '{"a": [1]}'}
    text = call(caller, "return 'é' * 10**7")["text"]
    assert (text.count("é"), len(text) < 8_050) == (8_000, True)
    assert "10,000,000" in text


def test_a_tool_that_prints_much_keeps_its_result(caller):
    assert call(caller, "print('x' * 10**7); return 'y'")["text"] == "y"


def test_a_tool_forgets_all_between_calls(caller):
    body = "import sys; sys.modules['left'] = 1; return 'left' in vars(sys)"
    call(caller, body)

    assert call(caller, "import sys; return 'left' in sys.modules")["text"] == "false"


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("environment", f"def reply(said): return 'x' * {REPLY_BYTES}"),
        ("contents", f"def f(): ...\nf.__doc__ = 'x' * {REPLY_BYTES}"),
    ],
)
def test_a_reply_that_is_too_long_is_ended(caller, kind, source):
    assert reply(caller, kind, source, **PLAY).end == "flood"
    assert caller.slot.is_alive()


def test_a_class_is_played_again_from_its_beginning(caller):
    source = (
        "class Game:\n"
        " def reset(self, n): self.texts = [n]\n"
        " def step(self, text):\n"
        "  self.texts.append(text)\n"
        "  return {'text': ' '.join(self.texts)}\n"
    )
    turns = [{"content": text} for text in "ab"]
    question = {**PLAY, "class": "Game", "row": {"n": "0"}}

    replies = [
        reply(caller, "environment", source, **{**question, "said": turns[:number]})
        for number in range(3)
    ]

    assert [each["value"] for each in replies] == [
        None,
        {"text": "0 a"},
        {"text": "0 a b"},
    ]


@pytest.mark.parametrize(
    "source",
    [
        "class M(type):\n def __getattr__(cls, name): raise OSError\n"
        "class A(metaclass=M): ...",
        "class A:\n def __getattr__(self, name): raise OSError\na = A()",
        "class A:\n @property\n def __signature__(self): raise OSError\n"
        " def __call__(self): ...\na = A()",
        "def f(): ...\nf.__annotations__ = {'a': 'open(0)'}",
        "def f(): ...\nf.__annotations__ = 5",
        "def f(): ...\nf.__doc__ = 5",
        "import enum\nclass E(enum.Enum):\n A = object()\ndef f(a: E): ...",
        "import typing\ndef f(a: typing.Callable[[int], int]): ...",
        "def f(a: list[...]): ...",
        "def f(*a: int, **b: int): ...",
        "f = lambda a: a",
        "import functools\nf = functools.partial(print, 1)",
        "f = print",
    ],
)
def test_a_strange_source_is_described_or_refused(caller, source):
    described = reply(caller, "contents", source)

    if "error" in described:
        assert "\n" not in described["error"]
    else:
        assert Contents.model_validate(described)
    assert caller.slot.is_alive()
