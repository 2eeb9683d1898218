"""Tool calls, as models write them into their text."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from trainer.rewards.rule import replace_surrogates
from trainer.tokenizers import first_line
from trainer.types import ToolCall

_Pairs = list[tuple[Any, Any]]  # name and arguments of each call


class CallFormat(NamedTuple):
    """A way to write tool calls: blocks of text, and how to read the calls in one."""

    block: re.Pattern[str]
    read: Callable[[str], _Pairs]
    end: str = ""  # of a block
    is_text: bool = False  # all values are text, and the schema has their types


_MALFORMED = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)


def split_calls(
    text: str, call_format: CallFormat, text_arguments: Mapping[str, Collection[str]]
) -> tuple[str, list[ToolCall]]:
    """Return a text without its calls, and these; a call that cannot be read has its
    text as arguments, and an error.

    Args:
        text: whatever a model wrote.
        call_format: in which it should write calls.
        text_arguments: the arguments of each tool that are text by its schema.
    """
    calls = []
    for block in call_format.block.finditer(text):
        try:
            calls += [
                ToolCall(
                    name=replace_surrogates(name),
                    arguments=_as_json(
                        arguments,
                        texts=text_arguments.get(name, ())
                        if call_format.is_text
                        else None,
                    ),
                )
                for name, arguments in call_format.read(block[1])
            ]
        except _MALFORMED as error:
            reason = f"The call cannot be read: {first_line(error)[:200]}."
            calls.append(ToolCall(name="", arguments=block[1].strip(), error=reason))
    return call_format.block.sub("", text), calls


def _as_json(arguments: Any, *, texts: Collection[str] | None) -> dict[str, Any]:
    """Return what JSON keeps of arguments; `texts` are text where all are read so."""
    if not isinstance(arguments, dict):
        raise TypeError("the arguments are no object")
    if texts is not None:
        arguments = {
            key: value if key in texts else _json_or_text(value)
            for key, value in arguments.items()
        }
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    kept: dict[str, Any] = json.loads(replace_surrogates(text))
    return kept


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_json(body: str) -> _Pairs:
    value = json.loads(body)
    pairs = []
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise TypeError("it has no name")
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        pairs.append((call["name"], arguments))
    return pairs


def _read_named(pattern: str, body: str) -> _Pairs:
    """Read a name, and arguments as JSON."""
    if (match := re.fullmatch(pattern, body.strip(), re.DOTALL)) is None:
        raise ValueError("it is not a name with arguments")
    name, arguments = match.groups()
    return [(name, json.loads(arguments))]


def _read_tags(name: str, pair: str, body: str) -> _Pairs:
    """Read a name, and arguments between tags; the third part of one is its end."""
    if (match := re.match(name, body)) is None:
        raise ValueError("it has no name")
    arguments = {}
    for argument in re.finditer(pair, body, re.DOTALL):
        if not argument[3]:
            raise ValueError(f"the end of {argument[1]} is missing")
        arguments[argument[1]] = argument[2]
    return [(match[1], arguments)]


class _JsonNames(ast.NodeTransformer):
    """Takes JSON's constants for Python's."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        constants = {"true": True, "false": False, "null": None}
        return ast.Constant(constants[node.id]) if node.id in constants else node


def _read_python(body: str) -> _Pairs:
    """Read a list of calls whose arguments have names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(body.strip(), mode="eval").body
    pairs = []
    for call in tree.elts if isinstance(tree, ast.List) else [tree]:
        if not isinstance(call, ast.Call):
            raise TypeError("it is no call")
        if call.args or any(word.arg is None for word in call.keywords):
            raise TypeError("an argument has no name")
        arguments = {
            word.arg: ast.literal_eval(_JsonNames().visit(word.value))
            for word in call.keywords
        }
        pairs.append((ast.unparse(call.func), arguments))
    return pairs


def _read_gemma(body: str) -> _Pairs:
    """Read Gemma's JSON, which quotes only values, by a token of its own."""
    parts = body.split('<|"|>')
    parts[::2] = [re.sub(_KEY, r'\1"\2":', part) for part in parts[::2]]
    parts[1::2] = [json.dumps(part) for part in parts[1::2]]
    return _read_named(rf"call:{_NAME}(\{{.*)", "".join(parts))


_KEY = r'([{,]\s*)([^\s{}\[\]:,"]{1,256}):'
_NAME = r"\s*([^\s<>{}\[\]]{1,256}+)"


def _block(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


_TAGGED = _block(r"<tool_call>(.*?)(?:</tool_call>|\Z)")
# As the templates of Qwen 2.5 and 3, Qwen 3.5, GLM, LFM2, Mistral (old and new),
# DeepSeek, Gemma 4, gpt-oss, Llama 3 and pythonic Llama write them. A block that has no
# end goes to the end of the text, so no text is searched twice: time is linear in it.
CALL_FORMATS = (
    CallFormat(_TAGGED, _read_json),
    CallFormat(
        _TAGGED,
        partial(
            _read_tags,
            rf"\s*<function={_NAME}>",
            r"<parameter=([^<>\n]{1,256})>\n?(.*?)\n?(</parameter>|\Z)",
        ),
        is_text=True,
    ),
    CallFormat(
        _TAGGED,
        partial(
            _read_tags,
            _NAME,
            r"<arg_key>([^<>\n]{1,256})</arg_key>\s*<arg_value>(.*?)(</arg_value>|\Z)",
        ),
        is_text=True,
    ),
    CallFormat(
        _block(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|\Z)"), _read_python
    ),
    CallFormat(_block(r"\[TOOL_CALLS\](\s*\[.*)\Z"), _read_json),
    CallFormat(
        _block(r"\[TOOL_CALLS\](.*?)(?=\[TOOL_CALLS\]|\Z)"),
        partial(_read_named, rf"{_NAME}(?:\[ARGS\])?(.*)"),
    ),
    CallFormat(
        _block(r"<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|\Z)"),
        partial(
            _read_named, rf"function<｜tool▁sep｜>{_NAME}\n```json\n(.*?)(?:\n```)?"
        ),
    ),
    CallFormat(
        _block(r"<\|tool_call>(.*?)(?:<tool_call\|>|\Z)"),
        _read_gemma,
        end="<tool_call|>",
    ),
    CallFormat(
        _block(
            r"(?:<\|start\|>assistant)?(?:<\|channel\|>commentary)? to=functions\."
            r"(.*?)(?:<\|call\|>|\Z)"
        ),
        partial(_read_named, rf"{_NAME}[^{{]*<\|message\|>(.*)"),
        end="<|call|>",
    ),
    CallFormat(
        # An answer that is JSON is no call.
        _block(
            r"\A\s*(?:<\|python_tag\|>\s*)?"
            r"((?:\[\s*)?\{\s*\"(?:name|type)\"(?=.*\"(?:parameters|arguments)\").*)\Z"
        ),
        _read_json,
    ),
    CallFormat(_block(r"\A\s*(\[\s*[\w.]{1,256}\(.*)\Z"), _read_python),
)
