"""What is named by a string is there: no import would tell that it has moved."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(
    r"(?<![\w./-])(?:dashboard|trainer|tests)(?:\.[a-z_]\w*)+(?::\w+)?", re.I
)
FILES = ("Makefile", "pyproject.toml", "docker/**/*", ".ci/*", "dashboard/**/*.py")
# Of verl's configuration, and files of a run.
NOT_OURS = {
    *("trainer.rollout_data_dir", "trainer.log", "trainer.times"),
    "trainer.loss.dppo_mask_",  # with low or high, of prime-rl
}
FILE_NAMES = {"py", "md", "json", "toml", "yaml", "yml", "html", "txt", "service"}


def test_every_dotted_name_leads_to_something():
    lost = {}
    num_names = 0
    for file in (found for pattern in FILES for found in ROOT.glob(pattern)):
        names = _names_in(file)
        num_names += len(names)
        if wrong := sorted(
            name for name in names - NOT_OURS if not _leads_somewhere(name)
        ):
            lost[str(file.relative_to(ROOT))] = wrong

    assert lost == {}
    assert num_names > 100


def _names_in(file: Path) -> set[str]:
    if not file.is_file():
        return set()
    text = file.read_text()
    if file.suffix != ".py":
        texts = [text]
    elif "migrations" in file.relative_to(ROOT).parts:
        texts = []
    else:
        constants = (
            n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)
        )
        texts = [n.value for n in constants if isinstance(n.value, str)]
    return {name for each in texts for name in NAME.findall(each)}


def _leads_somewhere(name: str) -> bool:
    module, _, attribute = name.partition(":")
    if module.rpartition(".")[2] in FILE_NAMES:
        return True  # a file's name, as dashboard.md
    if attribute:
        return _has(module, attribute)
    while not _is_module(module):
        module, _, attribute = module.rpartition(".")
        if "." not in module:
            return False
    rest = name.removeprefix(module).lstrip(".").split(".")[0]
    return not rest or _has(module, rest)


def _is_module(name: str) -> bool:
    return _file_of(name) is not None


def _file_of(name: str) -> Path | None:
    """Looked for, not imported: some modules do something when they are."""
    path = ROOT.joinpath(*name.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def _has(module: str, name: str) -> bool:
    file = _file_of(module)
    if file is None:
        return False
    nodes = ast.walk(ast.parse(file.read_text()))
    return any(name in _names_in_code(node) for node in nodes)


def _names_in_code(node: ast.AST) -> set[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Name(ctx=ast.Store()):
            return {node.id}
        case ast.ImportFrom() | ast.Import():
            return {alias.asname or alias.name for alias in node.names}
        case _:
            return set()
