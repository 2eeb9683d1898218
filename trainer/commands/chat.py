"""`python -m trainer chat`: models that answer the same prompt, side by side.

Asked and answered in lines of JSON. Once loaded it writes `{"device": "…"}`, or
`{"problem": "…"}`. Then, for each line such as

    {"row": {"prompt": "3+4?", "answer": "7", "columns": {}}, "turns": [[], []],
     "data": {…}, "seed": 0, "num_samples": 2, "max_new_tokens": 64, "temperature": 1.0}

where `data` are settings of DataConfig and `turns` are, for each model, the messages
behind the prompt, it writes for each model

    {"model": 0, "written": {"0": {"text", "num_tokens"}, "1": {…}}}

while they are written, a few times a second, what is new of each place; then

    {"model": 0, "place": 1, "completion": {"text", "num_tokens", "end_reason"}}

as each completion ends, or `{"model": 0, "problem": "…"}`; and at the end
`{"done": true}`. On a line `{"stop": true}` it gives up the question that it answers:
what was written so far is told, and that it is done.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainer.config import DataConfig, ModelConfig
from trainer.data import Prompt, PromptRenderer, Row
from trainer.errors import explain
from trainer.model.policy import Policy, load_policy
from trainer.rewards.rule import Message
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import Request, SamplingParams
from trainer.seeding import derive
from trainer.stopping import die_with_parent
from trainer.tokenizers import decode_text
from trainer.types import Rollout

TELL_SECONDS = 0.1  # between two looks at what is being written
# Of the time that passes, what making a text of the tokens may take.
TELL_SHARE = 0.1
# What a tokenizer makes of a character whose last bytes are still to come.
_UNFINISHED = "\ufffd"

_NEW_CONVERSATION = {"system_prompt": None, "prompt_template": None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Answer prompts by several models. Reads questions as JSON lines from stdin, "
        "writes as JSON lines what is being written, and each completion as it ends."
    )
    parser.add_argument(
        "--model", action="append", required=True, help="folder or hub id; repeatable"
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub model")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where"
    )


def main(options: argparse.Namespace) -> int:
    die_with_parent()
    try:
        policies = [
            load_policy(
                ModelConfig(
                    path=path,
                    revision=None if path.startswith("/") else options.revision,
                    device=options.device,
                )
            )
            for path in options.model
        ]
    except Exception as error:  # noqa: BLE001 - whatever it is, the asker must hear it
        _write({"problem": explain(error)})
        return 2
    _write({"device": str(policies[0].device)})
    asked = Asked()
    threading.Thread(target=asked.read, args=(sys.stdin,), daemon=True).start()
    while (question := asked.next()) is not None:
        with suppress(Stopped):
            for number, policy in enumerate(policies):
                _answer(number, policy, question, asked)
        _write({"done": True})
    if asked.problem:
        sys.stderr.write(f"{asked.problem}\n")
        return 2
    return 0


class Stopped(Exception):
    """Whoever asked does not want the rest."""


class Asked:
    """The lines of stdin, read while a question is answered."""

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self.problem = ""  # that ended the reading

    def read(self, lines: Iterable[str]) -> None:
        try:
            self._read(lines)
        except (ValueError, AttributeError, RecursionError) as error:
            self.problem = f"A line of stdin is no question: {error}."
        self._stop.set()
        self._questions.put(None)

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            told = json.loads(line)
            if told.get("stop"):
                self._stop.set()
            else:
                self._stop.clear()  # it was for the question before
                self._questions.put(told)

    def next(self) -> dict[str, Any] | None:
        return self._questions.get()

    def check(self) -> None:
        """
        Raises:
            Stopped: a stop was read since the question.
        """
        if self._stop.is_set():
            raise Stopped


class Written:
    """What a model has written of each completion that has not ended."""

    def __init__(self, number: int, policy: Policy, asked: Asked) -> None:
        self._number = number
        self._tokenizer = policy.tokenizer
        self._asked = asked
        self._tokens: dict[int, list[int]] = {}
        self._told: dict[int, str] = {}
        self._due = 0.0

    def add(self, place: int, tokens: Mapping[tuple[int, int], int]) -> None:
        """Take in a token of some, and tell what is new when it is time.

        Raises:
            Stopped: once it was told.
        """
        for (completion, _), token in tokens.items():
            own = self._tokens.setdefault(completion, [])
            own[place:] = [token]
        try:
            self._asked.check()
        except Stopped:
            self.tell()
            raise
        begin = time.monotonic()
        if begin >= self._due:
            self.tell()
            now = time.monotonic()
            self._due = now + max(TELL_SECONDS, (now - begin) / TELL_SHARE)

    def end(self, completion: int) -> None:
        self._tokens.pop(completion, None)

    def tell(self) -> None:
        new = {}
        for completion, tokens in self._tokens.items():
            text = decode_text(self._tokenizer, tokens).rstrip(_UNFINISHED)
            if text != self._told.get(completion):
                self._told[completion] = text
                new[completion] = {"text": text, "num_tokens": len(tokens)}
        if new:
            _write({"model": self._number, "written": new})


def _answer(
    number: int, policy: Policy, question: Mapping[str, Any], asked: Asked
) -> None:
    written = Written(number, policy, asked)

    def tell(place: int, completions: tuple[Rollout, ...]) -> None:
        (completion,) = completions
        written.end(place)
        told = {
            "text": completion.text,
            "num_tokens": completion.num_tokens,
            "end_reason": completion.end_reason,
        }
        _write({"model": number, "place": place, "completion": told})

    try:
        asked.check()
        prompt = render(policy, question, question["turns"][number])
        size = question["num_samples"]
        engine = TransformersEngine(policy, max_batch_rows=size)
        engine.on_tokens = written.add
        engine.sample(
            # Each alone, so that each is told of as it ends.
            [
                Request(
                    token_ids=prompt.token_ids,
                    seeds=(derive(question["seed"], "chat", place),),
                )
                for place in range(size)
            ],
            SamplingParams(
                max_new_tokens=question["max_new_tokens"],
                temperature=question["temperature"],
            ),
            on_group=tell,
        )
    except Stopped:
        raise
    except Exception as error:  # noqa: BLE001 - the other model may answer all the same
        _write({"model": number, "problem": explain(error)})


def render(
    policy: Policy, question: Mapping[str, Any], turns: Sequence[Message]
) -> Prompt:
    """The run's prompt, and what was said since.

    Raises:
        ValueError: there is no chat template to say it with, or it is too long.
    """
    given = question["row"]
    prompt = given["prompt"]
    row = Row(
        index=0,
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        answer=given["answer"],
        columns=given["columns"],
    )
    config = DataConfig.model_validate({**question["data"], "rows": "stdin"})
    first = PromptRenderer(policy.tokenizer, config).render(row)
    if not turns:
        return first
    if getattr(policy.tokenizer, "chat_template", None) is None:
        raise ValueError(
            "This model has no chat template, so it answers one turn only. Begin anew."
        )
    said = [_said(policy, turn) for turn in turns]
    going_on = config.model_copy(update=_NEW_CONVERSATION)
    whole = Row(index=0, prompt=(*first.messages, *said), answer=None, columns={})
    return PromptRenderer(policy.tokenizer, going_on).render(whole)


def _said(policy: Policy, turn: Message) -> Message:
    """A turn without the special tokens that ended it: the template writes its own."""
    content = turn["content"]
    if turn["role"] == "assistant":
        specials = policy.tokenizer.all_special_tokens
        while ending := next((t for t in specials if t and content.endswith(t)), None):
            content = content.removesuffix(ending)
    return {"role": turn["role"], "content": content}


def _write(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
