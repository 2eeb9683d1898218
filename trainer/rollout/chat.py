"""Token ids between two turns of a policy, and the tool calls that it writes.

What a policy sampled is never encoded again: the same text may have other ids. Behind
it come those that its chat template writes from the end of an assistant's message to
where the next one begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from trainer.config import DataConfig
from trainer.data import apply_chat_template, uses_chat_template
from trainer.rewards.rule import Message, message_text, replace_surrogates
from trainer.rollout.environments import MAX_CALLS, Said
from trainer.rollout.tool_calls import CALL_FORMATS, CallFormat, split_calls
from trainer.tokenizers import special_texts
from trainer.types import ToolCall, Turn


class _Frame(NamedTuple):
    """A reply without its contents."""

    pieces: tuple[str, ...]  # before, between and behind them
    writes: tuple[Callable[[str], str], ...]  # each content, as the template does
    ends: tuple[tuple[int, str], ...]  # tokens at its start that a policy may sample
    is_closing: bool  # they end the policy's message, and do not begin the reply
    is_behind_call: bool
    special: re.Pattern[str]  # what no content may have


_Kinds = tuple[tuple[str, str], ...]  # role and tool's name of each message
# What is looked for in chats that the template writes.
_USER, _SAID, _THOUGHT = "zquser", "zqsaid", "zqthought"
_ARGUMENTS = {"zqkey": "zq value", "zqcount": 3}

_MAX_FRAMES = 256  # kept: the policy chooses the names of tools
_THINKING = (("<think>", "</think>"), ("<|channel>thought\n", "<channel|>"))
_THOUGHTS = re.compile(
    r"<think>.*?(?:</think>|\Z)|<\|channel>thought.*?(?:<channel\|>|\Z)"
    r"|<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>(?:<\|start\|>assistant)?|\Z)",
    re.DOTALL,
)


def _probe(tag: str | None, index: int) -> str:
    """Return a content that shows how a template changes one."""
    edge = "\t" if tag == "a" else "\n"
    return f'{edge} zq{tag}{index} "é"\n\n\t<b>  & {edge}'


def _in_json(content: str) -> str:
    return json.dumps(content, ensure_ascii=False)[1:-1]


_WRITES: tuple[Callable[[str], str], ...] = (str, _in_json, str.strip)


class ChatFormat:
    """The way in which a model's chats are written."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        config: DataConfig,
        *,
        tools: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._tools = list(tools)
        self._functions = [tool.get("function", tool) for tool in tools]
        # What answers a turn that does all it can: role, and a tool's name.
        self._reply_kind = ("user", "")
        if tools:
            self._reply_kind = ("tool", str(self._functions[0]["name"]))
        self._is_plain = not uses_chat_template(tokenizer, config)
        added = tokenizer.added_tokens_decoder.items()
        named = zip(
            tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True
        )
        # No other token crosses the ends of these.
        self._atoms = dict(named) | {token_id: t.content for token_id, t in added}
        self._special = frozenset(special_texts(tokenizer))
        self._frame = lru_cache(_MAX_FRAMES)(self._make_frame)

    def between(
        self, messages: Sequence[Message], *, last_id: int, ended: bool
    ) -> Turn:
        """Return what stands between a turn of the policy and its next.

        Args:
            messages: the reply: of role user, or tool with the tool's name.
            last_id: the turn's last token.
            ended: it is an end token. If it is not the template's, it takes its place.

        Raises:
            ValueError: the template cannot write such a reply.
        """
        frame = self._frame(tuple(map(self._kind, messages)))
        text, shown = frame.pieces[0], []
        for turn, write, piece in zip(
            messages, frame.writes, frame.pieces[1:], strict=True
        ):
            content = _defused(message_text(turn), frame.special)
            start = len(text)
            text += write(content)
            shown.append((start, len(text)))
            text += piece
        ends = [token_id for token_id, _ in frame.ends]
        if last_id in ends:
            num_sampled = ends.index(last_id) + 1
        else:
            num_sampled = int(ended and frame.is_closing)
        cut = sum(len(token) for _, token in frame.ends[:num_sampled])
        return Turn(
            author="environment",
            text=text[cut:],
            token_ids=self._encode(text)[num_sampled:],
            logprobs=None,
            shown=tuple((start - cut, end - cut) for start, end in shown),
        )

    def parse(self, text: str) -> Said:
        """Return a turn of the policy as an environment reads it."""
        _, header = self._start
        head, end, _ = text.partition("</think>")
        # Where it does not begin its thinking, the prompt has done so.
        is_thinking = "<think>" not in head if end else self._opens_thinking
        rest = _THOUGHTS.sub("", f"<think>{text}" if is_thinking else text)
        calls: list[ToolCall] = []
        if self._call_format is not None:
            rest, calls = split_calls(rest, self._call_format, self._text_arguments)
        content = rest.rpartition(header)[2] if header and header in rest else rest
        if len(calls) > MAX_CALLS:
            error = (
                f"A turn has at most {MAX_CALLS} calls, and this one {len(calls):,}."
            )
            calls[MAX_CALLS - 1 :] = [ToolCall(name="", arguments="", error=error)]
        return Said(text=text, content=content.strip(), calls=tuple(calls))

    def check(self, eos_ids: Collection[int] | None = None) -> list[str]:
        """Return why no episode can be played; with none, it can.

        Args:
            eos_ids: tokens that end a turn of the policy; None: they are not known.
        """
        if self._tools and self._is_plain:
            return ["Tools need a chat template; this run has none."]
        reply = self._reply_kind
        replies: list[_Kinds] = [(("user", ""),)]
        if self._tools:
            replies += [(reply,), (reply, reply)]
        try:
            frame = [self._frame(kinds) for kinds in replies][-1]
        except ValueError as error:
            return [str(error)]
        if self._tools and self._call_format is None:
            return [
                "The chat template writes no tool calls, or in a form that is not "
                "supported."
            ]
        ends = dict(frame.ends) if frame.is_behind_call else {}
        if eos_ids is not None and ends and not ends.keys() & {*eos_ids}:
            tokens = " or ".join(ends.values())
            return [
                f"The chat template writes a tool's result only behind {tokens}, which "
                "does not end the model's turns. Add it to eos_token_id in the model's "
                "generation_config.json."
            ]
        return []

    @cached_property
    def drops_thinking(self) -> bool:
        """The template leaves out earlier thinking, which stays in an episode."""
        template = str(getattr(self._tokenizer, "chat_template", None))
        fields = {
            name: _THOUGHT
            for name in ("reasoning_content", "reasoning", "thinking")
            if re.search(rf"""['"]{name}['"]|\.{name}\b""", template)
        }
        # A template that reads thinking from no field may find it in the text.
        texts = [
            f"{start}{_THOUGHT}{end}{_SAID}"
            for start, end in _THINKING
            if end in template
        ]
        turns = [_said("") | fields] if fields else [_said(text) for text in texts]
        call = self._call([self._reply_kind[1]]) if self._tools else {}
        for turn in turns if not self._is_plain else ():
            with suppress(ValueError):
                chat = self._render([call | turn, _reply(self._reply_kind, "")])
                if _THOUGHT not in chat:
                    return True
        return False

    def _kind(self, turn: Message) -> tuple[str, str]:
        name = str(turn.get("name") or "") if turn["role"] == "tool" else ""
        return turn["role"], _defused(name, _any_of(self._special))

    def _make_frame(self, kinds: _Kinds) -> _Frame:
        """Return the frame of replies of these roles and names.

        Raises:
            ValueError: there is none, for a reason that the user reads.
        """
        if self._is_plain:
            writes = (str,) * len(kinds)
            pieces = ("", *("\n" for _ in kinds[1:]), *("" for _ in kinds[:1]))
            return _Frame(pieces, writes, (), False, False, _any_of(self._special))
        try:
            return self._frame_behind(kinds, is_call=False)
        except ValueError:
            has_end = self._call_format is not None and self._call_format.end
            if not has_end or not any(role == "tool" for role, _ in kinds):
                raise
            return self._frame_behind(kinds, is_call=True)

    def _frame_behind(self, kinds: _Kinds, *, is_call: bool) -> _Frame:
        head, tail = self._split_chat(kinds, "a", is_call=is_call)
        _, other = self._split_chat(kinds, "b", is_call=is_call)
        _, closing = self._split_chat(kinds, None, is_call=is_call)
        pieces, writes = _split_tail(tail, "a", kinds)
        if (pieces, writes) != _split_tail(other, "b", kinds):
            raise ValueError("The chat template writes two replies in different ways.")
        ids, start = self._encode(tail), 0
        ends: list[tuple[int, str]] = []
        for token_id in ids[: 2 if is_call else 1]:
            token = self._atoms.get(token_id, "")
            # A token behind a call's mark may begin the reply.
            text = closing if ends else tail
            if not token or not text.startswith(token, start):
                break
            ends.append((token_id, token))
            start += len(token)
        if not ends or self._encode(head) + ids != self._encode(head + tail):
            raise ValueError(
                "The chat template ends the assistant's turn with no special token, "
                f"but with {tail[:20]!r}."
            )
        text = "".join(pieces)
        # Not all tokens with which a template marks turns are special ones.
        marks = {
            token
            for token in self._atoms.values()
            if token in text and not token.isalnum()
        }
        return _Frame(
            pieces,
            writes,
            tuple(ends),
            bool(closing.strip()),
            is_call,
            _any_of(self._special | marks),
        )

    def _split_chat(
        self, kinds: _Kinds, tag: str | None, *, is_call: bool
    ) -> tuple[str, str]:
        """Return a chat to the end of the policy's text, or of its call, and the rest.

        A call's end mark is part of the rest. Without a tag there is no reply.
        """
        turn, mark = _said(_SAID), _SAID
        if is_call and self._call_format is not None:
            names = [name for role, name in kinds if role == "tool"]
            turn, mark = self._call(names), self._call_format.end
        replies = [
            _reply(kind, _probe(tag, index), index)
            for index, kind in enumerate(kinds)
            if tag is not None
        ]
        text = self._render([turn, *replies], opens=tag is not None)
        before = text.partition(f"zq{tag}0")[0]
        if (end := before.rfind(mark)) < 0:
            raise ValueError("The chat template drops the assistant's text.")
        end += 0 if is_call else len(mark)
        return text[:end], text[end:]

    def _render(self, turns: Sequence[Message], *, opens: bool = True) -> str:
        """Return a chat of these turns behind a prompt."""
        return apply_chat_template(
            self._tokenizer,
            self._config,
            [{"role": "user", "content": _USER}, *turns],
            tools=[*self._tools] or None,
            add_generation_prompt=opens,
            where="an episode",
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    @cached_property
    def _start(self) -> tuple[str, str]:
        """The prompt to where the policy begins, and what the template writes from
        there to its text.
        """
        if self._is_plain:
            return "", ""
        try:
            opening = self._render([])
            text = self._render([_said(_SAID)], opens=False)
        except ValueError:
            return "", ""
        before = text.partition(_SAID)[0]
        return opening, before[len(opening) :] if before.startswith(opening) else ""

    @cached_property
    def _opens_thinking(self) -> bool:
        """A turn of the policy begins within its thinking, whatever is before it."""
        openings = [self._start[0]]
        with suppress(ValueError):
            openings.append(self._frame((self._reply_kind,)).pieces[-1])
        return all(text.rstrip().endswith("<think>") for text in openings)

    @property
    def _call_format(self) -> CallFormat | None:
        return self._found[0]

    def _call(self, names: Sequence[str]) -> Message:
        return _calling(names, is_text=self._found[1])

    @cached_property
    def _found(self) -> tuple[CallFormat | None, bool]:
        """The format in which the template writes calls, and whether it takes their
        arguments as text: the one by which a call comes back.
        """
        opening, _ = self._start
        if not self._tools or self._is_plain:
            return None, False
        _, name = self._reply_kind
        for is_text in (False, True):
            try:
                text = self._render([_calling([name], is_text=is_text)], opens=False)
                _, closing = self._split_chat((), None, is_call=False)
            except ValueError:
                continue
            text = text.removeprefix(opening).rpartition(_USER)[2].removesuffix(closing)
            for call_format in CALL_FORMATS:
                _, calls = split_calls(text, call_format, {})
                if calls == [ToolCall(name=name, arguments=_ARGUMENTS)]:
                    return call_format, is_text
        return None, False

    @cached_property
    def _text_arguments(self) -> dict[str, set[str]]:
        """The arguments of each tool that are text by its schema."""
        return {
            str(function["name"]): {
                name
                for name, schema in (parameters.get("properties") or {}).items()
                if schema and schema.get("type") == "string"
            }
            for function in self._functions
            for parameters in [function.get("parameters") or {}]
        }


@lru_cache
def _any_of(texts: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern of the longest of these texts.

    A tokenizer has up to thousands: those with other first characters are left out
    at once.
    """
    kept = sorted((t for t in texts if len(t) > 1 and t.strip()), reverse=True)
    parts = []
    for head, group in groupby(kept, lambda text: text[:3]):
        rests = "|".join(re.escape(text[len(head) :]) for text in group)
        parts.append(f"{re.escape(head)}(?:{rests})")
    return re.compile("|".join(parts) or r"(?!)")


def _defused(text: str, special: re.Pattern[str]) -> str:
    """Put a space behind the first character of what would end a turn or begin one."""
    return special.sub(
        lambda match: f"{match[0][0]} {match[0][1:]}", replace_surrogates(text)
    )


def _said(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _calling(names: Sequence[str], *, is_text: bool) -> Message:
    arguments = json.dumps(_ARGUMENTS) if is_text else _ARGUMENTS
    return _said("") | {
        "tool_calls": [
            {
                "id": _call_id(index),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for index, name in enumerate(names)
        ]
    }


def _reply(kind: tuple[str, str], content: str, index: int = 0) -> Message:
    role, name = kind
    turn: Message = {"role": role, "content": content}
    return turn | {"name": name, "tool_call_id": _call_id(index)} if name else turn


def _call_id(index: int) -> str:
    return f"call{index:05}"  # Mistral's have 9 characters


def _split_tail(
    tail: str, tag: str, kinds: _Kinds
) -> tuple[tuple[str, ...], tuple[Callable[[str], str], ...]]:
    """Return what stands around the contents, and how these are written.

    Raises:
        ValueError: one of them is not there.
    """
    pieces, writes, start = [], [], 0
    for index, (role, _) in enumerate(kinds):
        probe = _probe(tag, index)
        for write in _WRITES:
            if (place := tail.find(write(probe), start)) >= 0:
                break
        else:
            raise ValueError(
                f"The chat template drops or changes the text of a {role} message that "
                "replies to the assistant."
            )
        pieces.append(tail[start:place])
        writes.append(write)
        start = place + len(write(probe))
    return (*pieces, tail[start:]), tuple(writes)
