"""Files with errors, each with the line, value and remedy expected.

Each kind of error comes as a line, with other line endings and encodings, compressed,
and as an item of a JSON list.
"""

import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dashboard.datasets.limits import MAX_LINE_CHARS

LONG_LINE = "x" * 99 + "\n"
GOOD = b'{"prompt": "2+2?", "answer": "4"}\n'


@dataclass(frozen=True)
class BadFile:
    name: str
    filename: str
    content: bytes
    line: int | None
    value: str  # a part of the refusal's value
    remedy: str  # a part of the refusal's remedy
    row: int | None = None


def _jsonl(name: str, second_line: bytes, value: str, remedy: str) -> BadFile:
    """A good first line, then the bad one."""
    return BadFile(name, "rows.jsonl", GOOD + second_line, 2, value, remedy)


def _csv(name: str, content: str, line: int, value: str, remedy: str) -> BadFile:
    return BadFile(name, "rows.csv", content.encode(), line, value, remedy)


def _json(
    name: str,
    content: bytes,
    line: int | None,
    value: str,
    remedy: str,
    row: Any = None,
) -> BadFile:
    return BadFile(name, "rows.json", content, line, value, remedy, row)


def _tsv(name: str, content: str, line: int, value: str, remedy: str) -> BadFile:
    return BadFile(name, "rows.tsv", content.encode(), line, value, remedy)


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, codec="zstd", asbytes=True)
    return packed


def parquet(**columns: Any) -> bytes:
    return _write(pa.table(columns))


def _write(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def _nested(depth: int) -> pa.Array:
    values = pa.array([1, 2])
    for _ in range(depth):
        values = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), values)
    return values


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
    _jsonl("NaN", _answer_of("NaN"), "NaN", "null"),
    _jsonl("Infinity", _answer_of("Infinity"), "Infinity", "null"),
    _jsonl("minus Infinity", _answer_of("-Infinity"), "-Infinity", "null"),
    _jsonl("1e400", _answer_of("1e400"), "Infinity", "null"),
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
    _jsonl("no prompt", b'{"answer": "4"}', "", "another column"),
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
        "content with a video",
        _prompt_of('[{"role": "user", "content": [{"type": "video_url"}]}]'),
        "video_url",
        "Remove the part",
    ),
    _jsonl(
        "assistant last",
        _prompt_of('[{"role": "assistant", "content": "so"}]'),
        "so",
        "Add one",
    ),
    _jsonl("no answer", b'{"prompt": "2+2?"}', "", "no answer"),
    _jsonl("null answer", _answer_of("null"), "null", "no answer"),
    _jsonl("empty answer", _answer_of('""'), '""', "no answer"),
    _jsonl("lists as answer", _answer_of("[[4]]"), "[4]", "extra column"),
    _jsonl("many answers", _answer_of(str([*range(101)])), "[0, 1", "Keep fewer"),
    _jsonl("object as answer", _answer_of('{"a": 4}'), '{"a": 4}', "extra column"),
]
CSV = [
    _csv("header only", "prompt,answer\n", 0, "", "right file"),
    _csv("same name twice", "prompt,prompt\na,b\n", 1, "prompt", "Rename"),
    _csv("nameless column", "prompt,,answer\na,b,c\n", 1, '""', "index=False"),
    _csv("too few fields", "prompt,answer\na,b\nc\n", 3, '["c"]', "for every column"),
    _csv("too many fields", "prompt,answer\na,b\n1,2,3\n", 3, '"3"', "double quotes"),
    _csv("open quote", 'prompt,answer\na,b\n"c,d\n', 3, '"c,d', '""'),
    _csv("text after quote", 'prompt,answer\na,b\n"c"x,d\n', 3, "x,d", '""'),
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
        'prompt,answer\na,b\n"' + LONG_LINE * (MAX_LINE_CHARS // 100 + 1) + '",c\n',
        3,
        "x",
        "double quote",
    ),
    BadFile(
        "not UTF-8", "rows.csv", b"prompt,answer\na,b\ncaf\xe9,d\n", 3, "0xE9", "UTF-8"
    ),
    BadFile(
        "not UTF-8 in quotes",
        "rows.csv",
        b'prompt,answer\na,b\n"x\ncaf\xe9",d\ne,f\n',
        4,
        "0xE9",
        "UTF-8",
    ),
    _csv("blank before the header", "\n\nprompt,prompt\n", 3, "prompt", "Rename"),
    _csv("semicolons", "prompt;answer\na;b\nc\n", 3, '["c"]', "double quotes"),
    _csv("a long name", f"prompt,{'n' * 201}\na,b\n", 1, "nnn", "Shorten"),
    _csv("NUL in a name", "prompt,a\x00\nb,c\n", 1, "\\u0000", "UTF-8"),
    _csv("too many columns", ",".join(map(str, range(1_001))), 1, "1,001", "Keep only"),
    BadFile("broken UTF-16", "rows.csv", b"\xff\xfep\x00\x00\xd8a\x00", 1, "", "UTF-8"),
]
TSV = [
    _tsv("header only", "prompt\tanswer\n", 0, "", "right file"),
    _tsv("same name twice", "prompt\tprompt\na\tb\n", 1, "prompt", "Rename"),
    _tsv("nameless column", "\tprompt\n1\ta\n", 1, '""', "index=False"),
    _tsv("too few fields", "prompt\tanswer\na\tb\nc\n", 3, '["c"]', "for every column"),
    _tsv("too many fields", "prompt\tanswer\n1\t2\t3\n", 2, '"3"', "separator"),
    _tsv("open quote", 'prompt\tanswer\na\tb\n"c\td\n', 3, "c", '""'),
    _tsv("NUL", "prompt\tanswer\na\tb\nc\x00\td\n", 3, "\\u0000", "UTF-8"),
    _tsv("empty prompt", "prompt\tanswer\na\tb\n\td\n", 3, '""', "Fill it in"),
    _tsv("empty answer", "prompt\tanswer\na\tb\nc\t\n", 3, '""', "no answer"),
]
TWO_LISTS = b'{"train": [{"prompt": "a"}],\n "test": [{"prompt": "b"}]}'
ENTRY = GOOD.strip()
JSON = [
    _json("empty list", b"[]", None, "", "right file"),
    _json("only spaces", b" \n \n", None, "", "right file"),
    _json("empty object", b"{}", 1, "}", "records"),
    _json("no list in it", b'{"prompt":\n"a"}', 2, "}", "records"),
    _json("list of texts", b'{"prompts": ["a", "b"]}', 1, "}", "records"),
    _json("empty list in it", b'{"data": []}', 1, "}", "records"),
    _json("two lists", TWO_LISTS, 2, "[{", "separate file"),
    _json("columns", b'{"prompt": {"0": "a"}}', 1, "}", "records"),
    _json("a text", b'"prompt"', 1, "prompt", "[{"),
    _json("a number", b"12", 1, "12", "[{"),
    _json("no end", b"[" + ENTRY + b",\n", 2, "", "complete"),
    _json("no end after an entry", b"[" + ENTRY, 1, "", "complete"),
    _json("half an entry", b"[" + ENTRY + b',\n{"prompt": "a', 2, "{", "complete"),
    _json("half a name", b'{"data": [' + ENTRY + b'], "me', 1, "me", "complete"),
    _json("trailing comma", b"[" + ENTRY + b",\n]", 2, "]", "complete"),
    _json("no comma", b"[" + ENTRY + b"\n" + ENTRY + b"]", 2, "{", "complete"),
    _json("two documents", b"[" + ENTRY + b"]\n[]", 2, "[]", "Remove"),
    _json("words behind it", b"[" + ENTRY + b"]\nend", 2, "end", "Remove"),
    _json("wrong bracket", b"[\n" + ENTRY + b"}", 2, "}", "complete"),
    _json("no colon", b'{"data" [' + ENTRY + b"]}", 1, "[", "complete"),
    _json("name without quotes", b"{data: [" + ENTRY + b"]}", 1, "data", "quotes"),
    _json("name is a number", b'{"a": 1, 2: [' + ENTRY + b"]}", 1, "2", "quotes"),
    _json("same name twice", b'{"a": 1,\n"a": [' + ENTRY + b"]}", 2, "a", "unique key"),
    _json("a name without end", b'[{"' + b"a" * 99, 1, "aaa", "complete"),
    _json(
        "broken beside it", b'{"a": {1}, "data": [' + ENTRY + b"]}", 1, "1", "quotes"
    ),
    _json("not UTF-8", b'[\n{"prompt": "caf\xe9"}]', 2, "0xE9", "UTF-8", 1),
    _json(
        "broken UTF-16", '[{"prompt": "é"}'.encode("utf-16") + b"\xd8", 1, "", "UTF-8"
    ),
    _json(
        "error in its third line",
        b'[{\n"prompt": "a",\n"answer": +4}]',
        3,
        "+4",
        "double quotes",
        1,
    ),
    _json(
        "a long entry",
        b'[{"prompt": "' + b"a" * (MAX_LINE_CHARS + 1) + b'"}]',
        1,
        "aaa",
        "Shorten",
    ),
    _json(
        "200,000 deep without end",
        b'[{"prompt": ' + b"[" * 200_000,
        1,
        "[[[",
        "Flatten",
        1,
    ),
]


def _list_parquet() -> list[BadFile]:
    return [
        _parquet("cut short", parquet(prompt=ASKS)[:-20], None, "", "Write it again"),
        _parquet("only the magic", b"PAR1PAR1", None, "", "Write it again"),
        _parquet(
            "magic and noise", b"PAR1" + b"\x07" * 999, None, "", "Write it again"
        ),
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
        _parquet(
            "null prompt", parquet(prompt=["a", None]), 2, "null", "another column"
        ),
        _parquet("numbers as prompt", parquet(prompt=[1, 2]), 1, "1", "another column"),
        _parquet(
            "NaN answer",
            parquet(prompt=ASKS, answer=[1.0, float("nan")]),
            2,
            "NaN",
            "null",
        ),
        _parquet(
            "bytes", parquet(prompt=ASKS, answer=[b"a", b"b"]), 1, "b'a'", "as text"
        ),
        _parquet(
            "a zone no one knows",
            parquet(
                prompt=ASKS, answer=pa.array([1, 2], pa.timestamp("us", tz="Mars/Base"))
            ),
            1,
            "Mars/Base",
            "as text",
        ),
        _parquet(
            "the year 100,000",
            parquet(prompt=ASKS, answer=pa.array([1, 2**62], pa.timestamp("us"))),
            2,
            "out of range",
            "as text",
        ),
        _parquet(
            "an endless span",
            parquet(prompt=ASKS, answer=pa.array([2**62, 1], pa.duration("s"))),
            1,
            "too large",
            "as text",
        ),
        _parquet(
            "text that is not UTF-8",
            parquet(prompt=pa.array([b"a", b"\xff"]).view(pa.string())),
            2,
            "0xff",
            "as text",
        ),
        _parquet(
            "an object with a name twice",
            parquet(
                prompt=ASKS,
                answer=pa.StructArray.from_arrays(
                    [pa.array([1, 2])] * 2, names=["a", "a"]
                ),
            ),
            1,
            "duplicate",
            "as text",
        ),
        _parquet(
            "nested answers",
            parquet(prompt=ASKS, answer=[[[1]], [[2]]]),
            1,
            "[1]",
            "extra column",
        ),
        _parquet(
            "lists 120 deep",
            parquet(prompt=ASKS, level=_nested(120)),
            None,
            "deep",
            "again",
        ),
        _parquet(
            "empty name", parquet(**{"prompt": ASKS, " ": ASKS}), 1, '" "', "name"
        ),
        _parquet(
            "an empty text",
            parquet(prompt=["a"] * 40 + ["", "a"]),
            41,
            '""',
            "Fill it in",
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
            49,
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


# What only a line can be: no entry of a list ends as these do.
LINES_ONLY = {
    "half an object",
    "two objects",
    "200,000 deep",
    "raw NUL",
    "not UTF-8",
    "overlong",
    "surrogate bytes",
}


def _as_json_list(bad: BadFile) -> BadFile:
    _, second = bad.content.split(b"\n", 1)
    content = b"[\n" + ENTRY + b",\n" + second + b"\n]\n"
    # Brackets delimit the items of a list, so the message is more precise.
    remedy = "double quotes" if "JSON object" in bad.remedy else bad.remedy
    return replace(
        bad, filename="rows.json", content=content, line=3, row=2, remedy=remedy
    )


def _recoded(encoding: str, line_end: str) -> Callable[[BadFile], BadFile]:
    def recode(bad: BadFile) -> BadFile:
        text = bad.content.decode().replace("\n", line_end)
        return replace(bad, content=text.encode(encoding))

    return recode


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _as_gzip(bad: BadFile) -> BadFile:
    packed = gzip.compress(bad.content, mtime=0)
    return replace(bad, filename=f"{bad.filename}.gz", content=packed)


def _as_zstd(bad: BadFile) -> BadFile:
    packed = zstd(bad.content)
    return replace(bad, filename=f"{bad.filename}.zst", content=packed)


def _ways(bad: BadFile) -> Iterator[tuple[str, Callable[[BadFile], BadFile]]]:
    yield "gzip", _as_gzip
    yield "zstd", _as_zstd
    if _is_utf8(bad.content):
        yield "UTF-16, CR LF", _recoded("utf-16", "\r\n")
        yield "marked, CR", _recoded("utf-8-sig", "\r")
    if bad.filename == "rows.jsonl" and bad.name not in LINES_ONLY:
        yield "in a list", _as_json_list


def _written_otherwise(bad: BadFile) -> list[BadFile]:
    if len(bad.content) > 10**6:
        return []  # too long to make five of them
    ways = ((way, write(bad)) for way, write in _ways(bad))
    return [replace(other, name=f"{bad.name}, {way}") for way, other in ways]


@cache
def list_bad_files() -> list[BadFile]:
    """Written when a test asks, as it takes seconds."""
    texts = [*JSONL, *CSV, *TSV]
    others = chain.from_iterable(map(_written_otherwise, texts))
    return [*texts, *JSON, *_list_parquet(), *others]
