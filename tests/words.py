"""Refuses private words in names, and phrases that plain English has no use for.

    python -m tests.words

Names are those that Python code defines, files, CSS classes and URL names; prose is
templates, strings, help pages and documents. Each word says what to write instead.

A docstring begins with a verb, or a class's and a property's with an article or a noun.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A part of a name, as in `told_of` or `ToldOf`.
NAMES = {
    "anew": "again",
    "anybody": "anyone",
    "apart": "separate",
    "asker": "client",
    "bell": "notification",
    "duel": "pair",
    "duels": "pairs",
    "halted": "cancelled",
    "hear": "receive",
    "heard": "received",
    "hearing": "listener",
    "learnt": "learned",
    "lives": "attempts",
    "sameness": "similarity",
    "shelf": "store",
    "somebody": "someone",
    "told": "reported",
    "vain": "failed",
    "waking": "wakeup",
    "whoever": "user",
}
# Of a sentence.
PROSE = {
    r"whoever": "anyone who, users who",
    r"somebody|nobody|anybody": "someone, no one, anyone",
    r"anew": "again",
    r"by and by": "soon, later",
    r"(is|are|was|were|be|been) told": "receives, is notified",
    r"in vain": "without success",
    r"as things stand": "now",
    r"put(s|ting)? away": "archive",
    r"learnt": "learned",
    r"no longer there": "deleted",
    r"what is not known": "unknown values",
    r"on the whole": "overall",
    r"(comes|come|came) to nothing": "fails",
    r"as (he|she|they) please": "freely",
}
# Packages whose docstrings are checked; and words that begin none of them.
DOCUMENTED = (
    "cohort/",
    "dashboard/accounts/",
    "dashboard/alerts/",
    "dashboard/analysis/",
    "dashboard/api/",
    "dashboard/completions/",
    "dashboard/datasets/",
    "dashboard/help/",
    "dashboard/jobs/",
    "dashboard/live/",
    "dashboard/local/",
    "dashboard/observability/",
    "dashboard/operations/",
    "dashboard/pages/launch.py",
    "dashboard/pages/reward_editor.py",
    "dashboard/project/",
    "dashboard/rewards/",
    "dashboard/runs/",
    "dashboard/supervision/",
    "dashboard/transfers/",
    "dashboard/web/",
    "trainer/",
)
PROPERTIES = {"property", "cached_property"}
FRAGMENTS = "What|Of|Those|As|How|Where|Which|Who|Whether|Behind|Beside|None|One|Each"
# Nor does one of these, or a number, begin a function's.
NO_VERBS = (
    r"A|All|Also|An|Another|At|Both|By|Every|For|From|If|In|It|Its|No|Not|Nothing|On|"
    r"Some|That|The|Their|To|Until|Why|With|Without|\d.*"
)


def main() -> int:
    found = sorted(set(list_faults()))
    for line in found:
        sys.stdout.write(f"{line}\n")
    return 1 if found else 0


def list_faults() -> Iterator[str]:
    listed = subprocess.run(
        ["git", "ls-files"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split():
        path = ROOT / name
        if name == "tests/words.py" or "/migrations/" in name:
            continue
        yield from _in_name(name, 1, Path(name).stem)
        match path.suffix:
            case ".py":
                yield from _in_python(name, path.read_text())
            case ".html" | ".md" | ".txt":
                yield from _in_prose(name, 1, path.read_text())
            case ".js" | ".css":
                yield from _in_script(name, path.read_text())


def _in_python(file: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        yield from _in_prose(file, number, line.partition("# ")[2])
    tree = ast.parse(text)
    if file.startswith(DOCUMENTED):
        yield from _in_docstrings(file, tree)
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield from _in_name(file, node.lineno, node.name)
            case ast.arg():
                yield from _in_name(file, node.lineno, node.arg)
            case ast.Name(ctx=ast.Store()):
                yield from _in_name(file, node.lineno, node.id)
            case ast.Attribute(ctx=ast.Store()):
                yield from _in_name(file, node.lineno, node.attr)
            case ast.Constant(value=str() as value) if " " in value:
                yield from _in_prose(file, node.lineno, value)


def _in_docstrings(file: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            decorators = {ast.unparse(each) for each in node.decorator_list}
            is_noun = isinstance(node, ast.ClassDef) or decorators & PROPERTIES
            words = FRAGMENTS if is_noun else f"{FRAGMENTS}|{NO_VERBS}"
            first = (ast.get_docstring(node) or "Do").split()[0].rstrip(",.:;")
            if re.fullmatch(words, first):
                kind = "an article or a noun" if is_noun else "a verb"
                yield f"{file}:{node.lineno}: {node.name}: begin with {kind}: {first} …"


def _in_script(file: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        code, _, comment = line.partition("//")
        for name in re.findall(r"[A-Za-z][\w-]*", code):
            yield from _in_name(file, number, name)
        yield from _in_prose(file, number, comment)


def _in_name(file: str, number: int, name: str) -> Iterator[str]:
    parts = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())
    for part in parts:
        if part in NAMES:
            yield f"{file}:{number}: {name}: say {NAMES[part]} in place of {part}"


def _in_prose(file: str, number: int, text: str) -> Iterator[str]:
    for found in PATTERN.finditer(text):
        at = number + text.count("\n", 0, found.start())
        phrase = next(p for p in PROSE if re.fullmatch(p, found[0], re.IGNORECASE))
        yield f"{file}:{at}: “{found[0]}”: say {PROSE[phrase]}"


PATTERN = re.compile(rf"\b({'|'.join(f'(?:{each})' for each in PROSE)})\b", re.I)

if __name__ == "__main__":
    sys.exit(main())
