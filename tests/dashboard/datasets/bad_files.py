"""Files that must be refused: (name, file name, bytes, line, in the value, remedy)."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dashboard.datasets.limits import MAX_LINE_CHARS

GOOD = b'{"prompt": "2+2?", "answer": "4"}\n'


@dataclass(frozen=True)
class BadFile:
    name: str
    filename: str
    content: bytes
    line: int | None
    value: str  # stands in the refusal's value
    remedy: str  # stands in the refusal's remedy


def _jsonl(name: str, second_line: bytes, value: str, remedy: str) -> BadFile:
    """A good first line, then the bad one."""
    return BadFile(name, "rows.jsonl", GOOD + second_line, 2, value, remedy)


def _csv(name: str, content: str, line: int, value: str, remedy: str) -> BadFile:
    return BadFile(name, "rows.csv", content.encode(), line, value, remedy)


def parquet(**columns: Any) -> bytes:
    return _write(pa.table(columns))


def _write(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def _parquet(
    name: str, content: bytes, line: int | None, value: str, remedy: str
) -> BadFile:
    return BadFile(name, "rows.parquet", content, line, value, remedy)


def _prompt_of(value: str) -> bytes:
    return f'{{"prompt": {value}, "answer": "4"}}'.encode()


def _answer_of(value: str) -> bytes:
    return f'{{"prompt": "2+2?", "answer": {value}}}'.encode()


def _level_of(value: str) -> bytes:
    return f'{{"prompt": "2+2?", "answer": "4", "level": {value}}}'.encode()


ASKS = ["2+2?", "3+3?"]
JSONL = [
    _jsonl("broken json", b"{prompt: 1}", "prompt", "double quotes"),
    _jsonl("half an object", b'{"prompt": "2', "prompt", "one JSON object"),
    _jsonl("two objects", GOOD.strip() + GOOD, "prompt", "one JSON object"),
    _jsonl("trailing comma", b'{"prompt": "a",}', "prompt", "one JSON object"),
    _jsonl("single quotes", b"{'prompt': 'a'}", "prompt", "double quotes"),
    _jsonl("a text", b'"2+2?"', "2+2?", "object"),
    _jsonl("a list", b"[1, 2]", "[1, 2]", "object"),
    _jsonl("a number", b"42", "42", "object"),
    _jsonl("null", b"null", "null", "object"),
    _jsonl("NaN", _level_of("NaN"), "NaN", "null"),
    _jsonl("Infinity", _level_of("Infinity"), "Infinity", "null"),
    _jsonl("minus Infinity", _level_of("-Infinity"), "-Infinity", "null"),
    _jsonl("1e400", _level_of("1e400"), "Infinity", "null"),
    _jsonl("5,000 digits", _level_of("9" * 5_000), "999", "as text"),
    _jsonl("key twice", b'{"prompt": "a", "prompt": "b"}', "prompt", "one of the two"),
    _jsonl("inner key twice", _level_of('{"a": 1, "a": 2}'), "a", "one of the two"),
    _jsonl("deep list", _level_of("[" * 90 + "]" * 90), "", "Flatten"),
    _jsonl("200,000 deep", _level_of("[" * 200_000), "[[[", "Flatten"),
    _jsonl("raw NUL", b'{"prompt": "a\x00b"}', "a\\u0000b", "UTF-8"),
    _jsonl("escaped NUL", _prompt_of('"a\\u0000b"'), "a\\u0000b", "Remove"),
    _jsonl("NUL in an answer", _answer_of('"\\u0000"'), "\\u0000", "Remove"),
    _jsonl("NUL in a column", _level_of('["\\u0000"]'), "\\u0000", "Remove"),
    _jsonl("NUL in a key", _level_of('{"\\u0000": 1}'), "\\u0000", "Remove"),
    _jsonl("NUL in a name", b'{"prompt": "a", "\\u0000": 1}', "\\u0000", "Rename"),
    _jsonl("lone surrogate", _prompt_of('"\\ud800"'), "\\ud800", "Remove"),
    _jsonl("low surrogate", _answer_of('"a\\udc00"'), "\\udc00", "Remove"),
    _jsonl("surrogate name", b'{"prompt": "a", "\\ud800": 1}', "\\ud800", "Rename"),
    _jsonl("not UTF-8", b'{"prompt": "caf\xe9"}', "0xE9", "UTF-8"),
    _jsonl("overlong", b'{"prompt": "\xc0\xaf"}', "0xC0", "UTF-8"),
    _jsonl("surrogate bytes", b'{"prompt": "\xed\xa0\x80"}', "0xED", "UTF-8"),
    _jsonl("a long line", _prompt_of(f'"{"a" * MAX_LINE_CHARS}"'), "aaa", "Shorten"),
    _jsonl("no name", b'{"prompt": "a", " ": 1}', '" "', "name"),
    _jsonl("a long name", f'{{"{"n" * 201}": 1}}'.encode(), "nnn", "Shorten"),
    _jsonl(
        "too many columns",
        ("{" + ",".join(f'"c{i}": 1' for i in range(1_001)) + "}").encode(),
        "1,001",
        "Keep only",
    ),
    _jsonl("no prompt", b'{"answer": "4"}', "null", "another column"),
    _jsonl("null prompt", _prompt_of("null"), "null", "another column"),
    _jsonl("empty prompt", _prompt_of('""'), '""', "Fill it in"),
    _jsonl("blank prompt", _prompt_of('" \\n"'), '" \\n"', "Fill it in"),
    _jsonl("number as prompt", _prompt_of("7"), "7", "another column"),
    _jsonl("no messages", _prompt_of("[]"), "[]", "another column"),
    _jsonl("message is text", _prompt_of('["hi"]'), "hi", '"role"'),
    _jsonl("no role", _prompt_of('[{"content": "hi"}]'), "content", '"role"'),
    _jsonl(
        "unknown role",
        _prompt_of('[{"role": "boss", "content": "hi"}]'),
        "boss",
        "system, user",
    ),
    _jsonl(
        "role is no text",
        _prompt_of('[{"role": ["user"], "content": "hi"}]'),
        "user",
        "system, user",
    ),
    _jsonl(
        "content is a list",
        _prompt_of('[{"role": "user", "content": ["hi"]}]'),
        "hi",
        "one text",
    ),
    _jsonl(
        "assistant last",
        _prompt_of('[{"role": "assistant", "content": "so"}]'),
        "so",
        "answer column",
    ),
    _jsonl("no answer", b'{"prompt": "2+2?"}', "null", "no answer"),
    _jsonl("null answer", _answer_of("null"), "null", "no answer"),
    _jsonl("empty answer", _answer_of('""'), '""', "no answer"),
    _jsonl("list as answer", _answer_of("[4]"), "[4]", "travel along"),
    _jsonl("object as answer", _answer_of('{"a": 4}'), '{"a": 4}', "travel along"),
    BadFile("list over lines", "rows.json", b'[\n{"prompt": "a"}\n]', 1, "[", "jq"),
]
CSV = [
    _csv("header only", "prompt,answer\n", 0, "", "right file"),
    _csv("same name twice", "prompt,prompt\na,b\n", 1, "prompt", "Rename"),
    _csv("nameless column", "prompt,,answer\na,b,c\n", 1, '""', "index=False"),
    _csv("too few fields", "prompt,answer\na,b\nc\n", 3, '["c"]', "double quotes"),
    _csv("too many fields", "prompt,answer\na,b\n1,2,3\n", 3, '"3"', "double quotes"),
    _csv("open quote", 'prompt,answer\na,b\n"c,d\n', 3, "unexpected end", '""'),
    _csv("text after quote", 'prompt,answer\na,b\n"c"x,d\n', 3, "expected", '""'),
    _csv("NUL", "prompt,answer\na,b\nc\x00,d\n", 3, "\\u0000", "UTF-8"),
    _csv("empty prompt", "prompt,answer\na,b\n,d\n", 3, '""', "Fill it in"),
    _csv("empty answer", "prompt,answer\na,b\nc,\n", 3, '""', "no answer"),
    _csv("after a break", 'prompt,answer\n"a\nb",c\n,d\n', 4, '""', "Fill it in"),
    _csv(
        "a long field",
        f'prompt,answer\na,b\n"{"x" * MAX_LINE_CHARS}",c\n',
        3,
        "xxx",
        "Shorten",
    ),
    _csv(
        "a long field of many lines",
        'prompt,answer\na,b\n"' + "x\n" * (MAX_LINE_CHARS // 2 + 1) + '",c\n',
        3,
        "field larger",
        "double quotes",
    ),
    BadFile(
        "not UTF-8", "rows.csv", b"prompt,answer\na,b\ncaf\xe9,d\n", 3, "0xE9", "UTF-8"
    ),
    BadFile("broken UTF-16", "rows.csv", b"\xff\xfep\x00\x00\xd8a\x00", 1, "", "UTF-8"),
]
PARQUET = [
    _parquet("cut short", parquet(prompt=ASKS)[:-20], None, "", "Write it again"),
    _parquet("only the magic", b"PAR1PAR1", None, "", "Write it again"),
    _parquet("magic and noise", b"PAR1" + b"\x07" * 999, None, "", "Write it again"),
    _parquet(
        "no rows", parquet(prompt=pa.array([], pa.string())), None, "", "right file"
    ),
    _parquet(
        "same name twice",
        _write(pa.Table.from_arrays([pa.array(ASKS)] * 2, names=["a", "a"])),
        None,
        "a",
        "Rename",
    ),
    _parquet("null prompt", parquet(prompt=["a", None]), 2, "null", "another column"),
    _parquet("numbers as prompt", parquet(prompt=[1, 2]), 1, "1", "another column"),
    _parquet(
        "NaN answer",
        parquet(prompt=ASKS, answer=[1.0, float("nan")]),
        2,
        "NaN",
        "null",
    ),
    _parquet("bytes", parquet(prompt=ASKS, level=[b"a", b"b"]), 1, "b'a'", "as text"),
    _parquet(
        "times",
        parquet(prompt=ASKS, level=[datetime(2026, 1, 1, tzinfo=UTC)] * 2),
        1,
        "datetime",
        "as text",
    ),
    _parquet(
        "decimals",
        parquet(prompt=ASKS, level=[Decimal("1.5")] * 2),
        1,
        "1.5",
        "as text",
    ),
    _parquet("NUL", parquet(prompt=["a", "b\x00"]), 2, "\\u0000", "Remove"),
    _parquet(
        "a bomb",
        _write(pa.table({"prompt": ["x" * 70 * 2**20]}), compression="zstd"),
        None,
        "bytes",
        "Keep fewer",
    ),
    _parquet(
        "a bomb of one word repeated",
        _write(
            pa.table({"prompt": pa.array(["x" * 2**20]).take(pa.array([0] * 500))}),
            compression="zstd",
        ),
        None,
        "bytes",
        "Keep fewer",
    ),
    _parquet(
        "too many rows",
        _write(pa.table({"prompt": pa.array(["a"] * 1_000_001)})),
        None,
        "1,000,001",
        "Split",
    ),
]
BAD_FILES = [*JSONL, *CSV, *PARQUET]
