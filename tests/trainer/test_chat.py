"""Answers are told of while they are written, and given up when nobody wants them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainer.commands.chat import Asked, Stopped, Written
from trainer.data import Prompt, Row
from trainer.model.policy import Policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import Request, SamplingParams
from trainer.types import Rollout


def sample(policy: Policy, on_tokens: Any, *, max_batch_rows: int = 8) -> Any:
    ids = tuple(policy.tokenizer("1+2=").input_ids)
    row = Row(index=0, prompt="1+2=", answer=None, columns={})
    prompt = Prompt(row=row, text="1+2=", token_ids=ids)
    engine = TransformersEngine(policy, max_batch_rows=max_batch_rows)
    engine.on_tokens = on_tokens
    return engine.sample(
        [Request(token_ids=prompt.token_ids, seeds=(seed,)) for seed in range(8)],
        SamplingParams(max_new_tokens=24, temperature=2.0),
    )


def test_each_token_of_a_text_is_told_once_in_its_place(policy: Policy) -> None:
    told: dict[int, list[int]] = {}

    def add(place: int, tokens: dict[tuple[int, int], int]) -> None:
        for (request, _), token in tokens.items():
            assert place == len(told.setdefault(request, []))
            told[request].append(token)

    completions: list[tuple[Rollout]] = sample(policy, add, max_batch_rows=3)

    # Rows that have ended stay in the batch a while: what they draw then is not told.
    for number, (one,) in enumerate(completions):
        has_ending = one.end_reason == "stop"
        text = one.token_ids[:-1] if has_ending else one.token_ids
        assert told.get(number, []) == list(text)
    assert {one.end_reason for (one,) in completions} == {"stop", "length"}


def test_what_is_written_grows_into_the_completion(
    policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    written = Written(1, policy, Asked())

    completions = sample(policy, written.add)
    written.tell()

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["model"] for line in lines} == {1}
    texts: dict[str, str] = {}
    for line in lines:
        for place, one in line["written"].items():
            assert one["text"].startswith(texts.get(place, ""))
            texts[place] = one["text"]
    assert texts == {str(n): one.text for n, (one,) in enumerate(completions)}


def test_a_character_is_told_of_when_all_its_bytes_are_there(
    policy: Policy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {1: "a\ufffd", 2: "a\ufffd\ufffd", 3: "aß"}
    monkeypatch.setattr(
        "trainer.commands.chat.decode_text", lambda _, ids: texts[len(ids)]
    )
    monkeypatch.setattr("trainer.commands.chat.TELL_SECONDS", 0.0)
    monkeypatch.setattr("trainer.commands.chat.TELL_SHARE", float("inf"))
    written = Written(0, policy, Asked())

    for place in range(3):
        written.add(place, {(0, 0): 7})

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["written"]["0"]["text"] for line in lines] == ["a", "aß"]


def test_a_stop_ends_the_question_before_it_and_no_later_one(
    policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked()
    asked.read(['{"seed": 1}', '{"stop": true}'])

    assert asked.next() == {"seed": 1}
    with pytest.raises(Stopped):
        sample(policy, Written(0, policy, asked).add)
    # The token that was drawn before it is not lost.
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["written"]["0"]["num_tokens"] == 1


def test_a_stop_that_came_too_late_does_not_end_the_next_question() -> None:
    asked = Asked()

    def lines() -> Any:
        yield '{"seed": 1}'
        yield '{"stop": true}'
        yield '{"seed": 2}'
        asked.check()

    asked.read(lines())

    assert [asked.next(), asked.next()] == [{"seed": 1}, {"seed": 2}]
    with pytest.raises(Stopped):  # stdin has ended: nobody reads what is written
        asked.check()


@pytest.mark.parametrize("line", ["x", "[]", "5", "[" * 100_000, '{"a":'])
def test_a_line_that_is_no_question_ends_the_asking(line: str) -> None:
    asked = Asked()

    asked.read([line])

    assert asked.next() is None
    assert asked.problem
