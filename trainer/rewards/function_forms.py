"""The forms in which people already have reward functions, and how to recognise them.

Read from the source's syntax tree: nothing of it runs.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, get_args

Form = Literal["cohort", "trl", "verl", "verifiers"]
FORMS: tuple[Form, ...] = get_args(Form)
TITLES: dict[Form, str] = {
    "cohort": "Cohort",
    "trl": "TRL",
    "verl": "verl",
    "verifiers": "verifiers",
}
SIGNATURES: dict[Form, str] = {
    "cohort": "reward(completion, answer)",
    "trl": "f(completions, **kwargs)",
    "verl": "compute_score(data_source, solution_str, ground_truth, extra_info=None)",
    "verifiers": "f(completion, answer, state)",
}
EXAMPLES: dict[Form, str] = {
    "cohort": """\
def reward(completion, answer):
    words = completion.split()
    print(len(words), "words")
    return 1.0 if words and words[-1] == answer else 0.0
""",
    "trl": '''\
def accuracy_reward(completions, answer, **kwargs):
    """One reward for each completion of a prompt."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [1.0 if right in text else 0.0 for text, right in zip(texts, answer)]
''',
    "verl": """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    last = solution_str.split()[-1:]
    return {
        "score": float(last == [ground_truth]),
        "num_words": len(solution_str.split()),
    }
""",
    "verifiers": """\
async def exact_match(completion, answer, **kwargs) -> float:
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    return 1.0 if text.strip() == answer else 0.0
""",
}

# What each form hands over by name. TRL's has the row's columns besides.
COHORT = frozenset({"prompt", "completion", "answer", "columns"})
TRL = frozenset(
    {
        "prompts", "completions", "completion_ids", "trainer_state", "log_extra",
        "log_metric", "environments",
    }
)  # fmt: skip
VERL = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"})
VERIFIERS = frozenset({"prompt", "completion", "answer", "state", "info", "task"})
# Of those, what a rule cannot know: its scores depend on the row and completion alone,
# so that they can be had again at any time.
UNKNOWN = frozenset({"trainer_state", "environments"})
# Of verl's batched reward managers, and of verifiers' functions of a group.
_PLURALS = {
    "solution_strs": "verl's form for a batch",
    "data_sources": "verl's form for a batch",
    "ground_truths": "verl's form for a batch",
    "states": "verifiers' form for a group",
    "infos": "verifiers' form for a group",
    "queries": "OpenRLHF's form",
}
_NAMES = COHORT | TRL | VERL | VERIFIERS | _PLURALS.keys()
LEGACY = "reward"  # the one name that a function could have before


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """A function of a source that a rule can call.

    Attributes:
        names: parameters that it takes by name.
        required: those of them without a default.
        reads: what of its arguments its body looks at, also as a key of `**kwargs`.
        takes_rest: whether it has `**kwargs`.
        wrong_type: what it is said to return, where its form returns another type.
    """

    name: str
    form: Form
    names: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    takes_rest: bool = False
    wrong_type: str = ""

    @property
    def judges_groups(self) -> bool:
        """True where it is given all completions of a prompt at once."""
        return self.form == "trl"

    @property
    def title(self) -> str:
        """
        >>> RewardFunction(name="accuracy_reward", form="trl").title
        'TRL reward function accuracy_reward'
        """
        return f"{TITLES[self.form]} reward function {self.name}"


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """The contents of a source.

    Attributes:
        functions: in the order of the source.
        helpers: those of a form that serve others; a rule calls one that it names.
        refused: names of functions that are nearly of a form, and why they are not.
        imports: names of the modules that it imports, without their submodules.
        fault: why the source cannot be read; "" where it can.
    """

    functions: tuple[RewardFunction, ...] = ()
    helpers: tuple[RewardFunction, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    imports: frozenset[str] = frozenset()
    fault: str = ""


def rule_names(
    functions: Iterable[RewardFunction], taken: Iterable[str] = ()
) -> list[str]:
    """Return names for rules of these functions: theirs, as far as a rule may be named
    so.

    >>> rule_names([RewardFunction(name="Exact", form="trl")], taken=["exact"])
    ['exact_2']
    """
    used = set(taken)
    names = []
    for function in functions:
        plain = re.sub(r"[^a-z0-9_]", "_", function.name.lower())[:36]
        plain = plain if re.match("[a-z]", plain) else f"f{plain}"[:36]
        choices = (plain, *(f"{plain}_{n}" for n in range(2, len(used) + 3)))
        names.append(next(name for name in choices if name not in used))
        used.add(names[-1])
    return names


def none_recognised(recognised: Recognised) -> str:
    """Return why a source is no rule, in a sentence that names the four signatures."""
    if recognised.fault:
        text = f"The source is not valid Python. {recognised.fault}."
    elif recognised.refused:
        name, why = next(iter(recognised.refused.items()))
        text = f"{name} is not a reward function: {why}."
    else:
        text = "The source defines no reward function."
    signatures = "; ".join(f"{TITLES[form]}: {SIGNATURES[form]}" for form in FORMS)
    return f"{text} The signatures are {signatures}."


@lru_cache(maxsize=256)
def recognise(source: str) -> Recognised:
    """Return the reward functions of a source, in the order of their definitions.

    Functions that begin with an underscore or match no form are helpers.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _recognised(ast.parse(source.removeprefix("\ufeff")))
    except SyntaxError as error:
        if (error.text or "").lstrip().startswith(("%", "!")):
            fault = f"Line {error.lineno}: a notebook command is not Python; remove it"
            return Recognised(fault=fault)
        return Recognised(fault=f"Line {error.lineno}: {error.msg}")
    except (ValueError, RecursionError, MemoryError):
        return Recognised(fault="It is nested too deeply")


def _recognised(tree: ast.Module) -> Recognised:
    callables = _Callables(tree.body)
    functions: dict[str, RewardFunction] = {}
    refused = {}
    for name, signature in callables.found.items():
        if name.startswith("_"):
            continue
        try:
            form = _form(name, signature)
        except _NotAReward as why:
            refused[name] = str(why)
            continue
        if form is not None:
            functions[name] = RewardFunction(
                name=name,
                form=form,
                names=frozenset(signature.names),
                required=signature.required,
                reads=signature.reads,
                takes_rest=bool(signature.rest),
                wrong_type=_one_type_of(_NUMBERS, signature.returns)
                if form == "trl"
                else "",
            )
    # A function that others call, or that reads a text alone, is a helper, unless all
    # are.
    helpers = {
        node.func.id
        for name, signature in callables.found.items()
        if name in functions or name.startswith("_")
        for statement in signature.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in functions.keys() - {name, LEGACY}
    }
    helpers |= {
        name
        for name, function in functions.items()
        if name != LEGACY and _is_helper(function.form, callables.found[name])
    }
    if len(helpers) == len(functions):
        helpers.clear()
    return Recognised(
        functions=tuple(
            function for name, function in functions.items() if name not in helpers
        ),
        helpers=tuple(functions[name] for name in functions if name in helpers),
        refused=refused,
        imports=_imports(tree),
    )


@lru_cache(maxsize=256)
def select(source: str, name: str) -> RewardFunction:
    """Return the function that a rule calls.

    Without a name it is `reward`, as it was before there were names; else the only
    function that there is.

    Raises:
        ValueError: there is none, or which one is meant is not said.
    """
    recognised = recognise(source)
    if name:
        for function in (*recognised.functions, *recognised.helpers):
            if function.name == name:
                return function
        if name in recognised.refused:
            raise ValueError(
                f"{name} is not a reward function: {recognised.refused[name]}."
            )
        names = ", ".join(function.name for function in recognised.functions) or "none"
        raise ValueError(
            f'The source has no reward function named "{name}". It has: {names}.'
        )
    if (legacy := _legacy(source, recognised)) is not None:
        return legacy
    if not recognised.functions:
        raise ValueError(none_recognised(recognised))
    if len(recognised.functions) > 1:
        names = ", ".join(function.name for function in recognised.functions)
        raise ValueError(
            f"The source has {len(recognised.functions)} reward functions: {names}. "
            "Name one, or make a rule of each."
        )
    return recognised.functions[0]


def has_function(source: str) -> bool:
    """Return whether a rule can call a function of a source at all."""
    recognised = recognise(source)
    return bool(recognised.functions) or _legacy(source, recognised) is not None


def is_ambiguous(source: str) -> bool:
    """Return whether a source has several functions, none of which is the one by
    default.
    """
    recognised = recognise(source)
    return len(recognised.functions) > 1 and _legacy(source, recognised) is None


def _legacy(source: str, recognised: Recognised) -> RewardFunction | None:
    """Return a function named `reward` is called as it always was, wherever that works.

    Also one that only running the source would show, and a source that cannot be
    parsed, which says so when it is called.
    """
    if recognised.fault:
        return RewardFunction(name=LEGACY, form="cohort") if LEGACY in source else None
    for function in recognised.functions:
        if function.name == LEGACY:
            return function
    if LEGACY in recognised.refused or LEGACY not in _bound(source):
        return None
    return RewardFunction(name=LEGACY, form="cohort")


def _bound(source: str) -> set[str]:
    """Return names that a source's own statements may give a value."""
    names = set()
    for node in ast.walk(ast.parse(source.removeprefix("\ufeff"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


@dataclass(frozen=True, kw_only=True)
class _Signature:
    """A signature, as far as the source says."""

    names: tuple[str, ...]  # by name
    positional: tuple[str, ...] = ()  # by position alone
    required: frozenset[str]
    rest: str = ""  # name of **kwargs
    has_star: bool = False
    returns: ast.expr | None = None
    body: tuple[ast.AST, ...] = ()
    is_generator: bool = False

    @property
    def reads(self) -> frozenset[str]:
        """Names and keys of **kwargs that the body looks at."""
        names: set[str] = set()
        for part in self.body:
            for node in ast.walk(part):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    names.add(node.id)
        return frozenset((names & set(self.names)) | self.keys)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of **kwargs that the body names."""
        keys = {
            key
            for part in self.body
            for node in ast.walk(part)
            if (key := _key_of(node, self.rest)) is not None
        }
        return frozenset(keys)


def _key_of(node: ast.AST, rest: str) -> str | None:
    """Return the text in kwargs["text"], kwargs.get("text") and kwargs.pop("text")."""
    key: ast.AST | None = None
    if isinstance(node, ast.Subscript) and _is_name(node.value, rest):
        key = node.slice
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("get", "pop")
        and _is_name(node.func.value, rest)
        and node.args
    ):
        key = node.args[0]
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    return None


def _is_name(node: ast.AST, name: str) -> bool:
    return bool(name) and isinstance(node, ast.Name) and node.id == name


class _Callables:
    """The callables that a module's statements define, by name; the last holds."""

    def __init__(self, body: Sequence[ast.stmt]) -> None:
        self.found: dict[str, _Signature] = {}
        self._makers: dict[str, _Signature] = {}  # what a call gives
        for statement in _statements(body):
            self._read(statement)

    def _read(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._put(node.name, _signature(node.args, node.body, node.returns))
            inside = _Callables(node.body)
            self._makers.update(
                (node.name, inner)
                for part in node.body
                if isinstance(part, ast.Return) and part.value is not None
                if (inner := inside._signature_of(part.value)) is not None
            )
        elif isinstance(node, ast.ClassDef):
            self.found.pop(node.name, None)
            for part in node.body:
                if (
                    isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
                    and part.name == "__call__"
                ):
                    own = _signature(part.args, part.body, part.returns)
                    self._makers[node.name] = _without_first(own)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    self._bind(target.id, node.value)

    def _put(self, name: str, signature: _Signature) -> None:
        self.found.pop(name, None)  # so that it stands where it is defined last
        self.found[name] = signature

    def _bind(self, name: str, value: ast.expr) -> None:
        signature = self._signature_of(value)
        if isinstance(value, ast.Name) and signature is not None:
            if name != LEGACY:
                return  # another name of a function that is there already
            del self.found[value.id]
        if signature is None:
            self.found.pop(name, None)
        else:
            self._put(name, signature)

    def _signature_of(self, value: ast.expr) -> _Signature | None:
        if isinstance(value, ast.Lambda):
            return _signature(value.args, [value.body], None)
        if isinstance(value, ast.Name):
            return self.found.get(value.id)
        if not isinstance(value, ast.Call):
            return None
        if isinstance(value.func, ast.Name) and value.func.id in self._makers:
            return self._makers[value.func.id]
        if _is_partial(value.func) and value.args:
            of = self._signature_of(value.args[0])
            return None if of is None else _partial(of, value)
        return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield a module's, also those inside if, try and with."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _statements(node.body)
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
            yield from _statements(getattr(node, "orelse", []))
            yield from _statements(getattr(node, "finalbody", []))


def _signature(
    arguments: ast.arguments, body: Sequence[ast.AST], returns: ast.expr | None
) -> _Signature:
    positional = [argument.arg for argument in arguments.posonlyargs]
    plain = [argument.arg for argument in arguments.args]
    keyword = [argument.arg for argument in arguments.kwonlyargs]
    in_order = [*positional, *plain]
    defaults = in_order[len(in_order) - len(arguments.defaults) :]
    with_default = {
        *defaults,
        *(
            n
            for n, d in zip(keyword, arguments.kw_defaults, strict=True)
            if d is not None
        ),
    }
    return _Signature(
        names=(*plain, *keyword),
        positional=tuple(positional),
        required=frozenset({*in_order, *keyword} - with_default),
        rest=arguments.kwarg.arg if arguments.kwarg else "",
        has_star=arguments.vararg is not None,
        returns=returns,
        body=tuple(body),
        is_generator=any(
            isinstance(node, ast.Yield | ast.YieldFrom) for node in _nodes_of_body(body)
        ),
    )


def _nodes_of_body(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a body, without those of functions inside."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        inner = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
        if not isinstance(node, inner):
            yield node
            waiting += ast.iter_child_nodes(node)


def _without_first(signature: _Signature) -> _Signature:
    """Return a method's, without self."""
    if signature.positional:
        first, positional = signature.positional[0], signature.positional[1:]
        return replace(
            signature, positional=positional, required=signature.required - {first}
        )
    first = signature.names[0] if signature.names else ""
    return replace(
        signature, names=signature.names[1:], required=signature.required - {first}
    )


def _is_partial(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr == "partial" and _is_name(function.value, "functools")
    return _is_name(function, "partial")


def _partial(of: _Signature, call: ast.Call) -> _Signature:
    """Return what is left to give after functools.partial; a keyword gets a default."""
    num_given = len(call.args) - 1
    gone = set([*of.positional, *of.names][:num_given])
    defaults = {keyword.arg for keyword in call.keywords if keyword.arg}
    return replace(
        of,
        positional=of.positional[num_given:],
        names=tuple(name for name in of.names if name not in gone),
        required=of.required - gone - defaults,
    )


class _NotAReward(Exception):
    """Nearly of a form; the text is a clause that says what is missing."""


def _form(name: str, signature: _Signature) -> Form | None:
    """Return a callable's form; None for a helper.

    Raises:
        _NotAReward: it is nearly of a form.
    """
    takes = set(signature.names) | signature.keys
    taken = takes | set(signature.positional)
    if name != LEGACY and not taken & _NAMES:
        return None
    form = _form_by_names(name, takes, taken)
    # A Cohort `reward` is never refused: what is wrong with it, its call says.
    if form is not None and not (name == LEGACY and form == "cohort"):
        _check(form, signature)
    return form


def _form_by_names(name: str, takes: set[str], taken: set[str]) -> Form | None:
    if plural := next((name for name in _PLURALS if name in taken), None):
        raise _NotAReward(
            f"{_PLURALS[plural]} is not supported; take one completion at a time"
        )
    if taken & {"completions", "completion_ids"}:
        if "completion" in taken:
            raise _NotAReward("it takes both completions and completion")
        return "trl"
    if "solution_str" in taken:
        return "verl"
    if "columns" in taken and (
        name == LEGACY or taken & {"completion", "prompt", "answer"}
    ):
        return "cohort"
    if name == LEGACY:
        return "verifiers" if takes & {"state", "info", "task"} else "cohort"
    return "verifiers" if "completion" in taken else None


_GIVEN = {"cohort": COHORT, "verl": VERL, "verifiers": VERIFIERS}


def _check(form: Form, signature: _Signature) -> None:
    if unnamed := [n for n in signature.positional if n in signature.required]:
        raise _NotAReward(f"its parameter {unnamed[0]} cannot be given by name")
    if signature.is_generator:
        raise _NotAReward("it yields its results; return them")
    if form == "trl":
        if read := sorted(signature.reads & UNKNOWN):
            raise _NotAReward(
                f"it reads {read[0]}, which a rule does not know: scores depend on the "
                "row and the completion alone"
            )
    elif unknown := signature.required - _GIVEN[form]:
        first = next(name for name in signature.names if name in unknown)
        raise _NotAReward(
            f"its parameter {first} is unknown; {TITLES[form]} functions get "
            f"{', '.join(sorted(_GIVEN[form]))}"
        )
    if wrong := _one_type_of(_WRONG_TYPES[form], signature.returns):
        raise _NotAReward(f"it returns {wrong}")


_NUMBERS = frozenset({"float", "int", "bool"})
_LISTS = frozenset({"list", "List", "Sequence", "tuple", "Tuple", "Iterable"})
_OTHERS = frozenset({"str", "bytes", "set", "None", "dict", "Dict"})
_WRONG_TYPES: dict[Form, frozenset[str]] = {
    "cohort": _LISTS | _OTHERS,
    # Published ones have the type of one score: see `wrong_type`.
    "trl": _OTHERS,
    "verl": (_LISTS | _OTHERS) - {"dict", "Dict"},
    "verifiers": _LISTS | _OTHERS,
}


def _one_type_of(types: frozenset[str], annotation: ast.expr | None) -> str:
    """Get the text of an annotation with one of these types; "" where it is another."""
    text = _text_of(annotation)
    outer = text.partition("[")[0].strip().rpartition(".")[2]
    return text if outer in types and "|" not in text else ""


def _text_of(annotation: ast.expr | None) -> str:
    """Unparse it, without the quotation marks of one that is a text itself."""
    return ast.unparse(annotation).strip("'") if annotation is not None else ""


_REFERENCES = (COHORT | VERL | VERIFIERS) - {"prompt", "completion", "solution_str"}


def _is_helper(form: Form, signature: _Signature) -> bool:
    """Tell whether it takes a text alone, and nothing says that it returns a number."""
    taken = {*signature.names, *signature.positional}
    if form == "trl" or signature.rest or taken & _REFERENCES:
        return False
    if signature.returns is not None:
        return not any(name in _text_of(signature.returns) for name in _NUMBERS)
    nodes = (node for part in signature.body for node in ast.walk(part))
    return not any(map(_tells_number, nodes))


_NUMBER = re.compile(
    r"[-\d]|math\.|(not|True|False|len|int|float|sum|min|max|abs|any|all|round)\b"
)


def _tells_number(node: ast.AST) -> bool:
    """Return a float anywhere; a whole number, a comparison or the like that is
    returned.
    """
    if isinstance(node, ast.Return) and node.value is not None:
        text = ast.unparse(node.value)
        return isinstance(node.value, ast.Compare | ast.BinOp) or bool(
            _NUMBER.match(text)
        )
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def _imports(tree: ast.AST) -> frozenset[str]:
    """Return the modules that a source imports anywhere, by their first name."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return frozenset(modules)
