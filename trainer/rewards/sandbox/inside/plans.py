"""The call "plan": splits tests into calls and expected values.

This process has no code of a completion. Expected values are computed here and stay
with the caller; the code gets only its part of each test. Tests that cannot be split
are sent whole and counted: the code could find their expected values.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
from collections.abc import Iterable, Iterator
from typing import Any

from trainer.rewards.sandbox.inside.messages import (
    describe,
    encode,
    next_question,
    reply,
)

Formula = dict[str, Any]
_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in",
    ast.NotIn: "not in",
}  # fmt: skip
_MAX_TURNS = 200  # of a loop over listed cases that is written out
# Whose answer is not the code's own: one that replaces them decides the test.
_BUILT_IN = frozenset(dir(builtins))


def perform_plan() -> None:
    """Reply with {"steps", "tests", "num_tests"}, or {"error": one line}."""
    question = next_question()
    number = 0
    try:
        plan = _Plan(question["max_tests"], question["entry_point"])
        with contextlib.redirect_stdout(io.StringIO()):
            for text in question["tests"]:
                number += 1
                plan.add(text, is_single=len(question["tests"]) > 1)
        outcome = {
            "steps": plan.steps,
            "tests": plan.tests,
            "num_tests": plan.num_tests,
        }
    except SyntaxError as error:
        outcome = {
            "error": f"test {number} is not Python: {error.msg}, line {error.lineno}"
        }
    except (RecursionError, MemoryError):
        outcome = {"error": f"test {number} is nested too deeply"}
    except BaseException as error:  # noqa: BLE001 - any error is reported
        outcome = {"error": f"test {number}: {describe(error, '<test>')}"}
    reply(outcome)


class _NotSeparable(Exception):
    """This cannot be separated from what it expects."""


class _Plan:
    def __init__(self, max_tests: int, entry_point: str | None) -> None:
        self.steps: list[dict[str, Any]] = []
        self.tests: list[dict[str, Any]] = []
        self.num_tests = 0
        self._max_tests = max_tests
        self._entry_point = entry_point
        # What tests themselves import, for expectations such as math.sqrt(2).
        self._names: dict[str, Any] = {}
        self._known: dict[str, ast.expr] = {}
        self._test_functions: set[str] = set()

    def add(self, text: str, *, is_single: bool) -> None:
        """Add a test's statements; where `is_single`, its asserts count as one test."""
        module = ast.parse(text)
        self._known = _expected_names(module)
        formulas = list(self._split_all(module.body))
        if is_single and formulas:
            formulas = [{"all": formulas}]
        for formula in formulas:
            self.num_tests += 1
            if len(self.tests) < self._max_tests:
                self.tests.append({"formula": formula, "num_steps": len(self.steps)})

    def _split_all(self, body: list[ast.stmt]) -> Iterator[Formula]:
        for statement in body:
            yield from self._split(statement)

    def _split(self, statement: ast.stmt) -> Iterator[Formula]:
        if isinstance(statement, ast.Assert):
            yield self._assertion(statement)
        elif isinstance(statement, ast.FunctionDef):
            yield from self._function(statement)
        elif isinstance(statement, ast.ClassDef):
            self._set_up(statement)
        elif isinstance(statement, ast.For) and (turns := self._unroll(statement)):
            for body in turns:
                yield from self._split_all(body)
        elif any(
            isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(statement)
        ):
            yield {"inside": self._step(ast.unparse(statement), is_value=False)}
        elif not (  # what is expected, which the code is not shown
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and statement.targets[0].id in self._known
        ):
            self._set_up(statement)

    def _set_up(self, statement: ast.stmt) -> None:
        if (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and isinstance(statement.value.func, ast.Name)
            and statement.value.func.id in self._test_functions
        ):
            return  # the function's body stands here in its place
        text = ast.unparse(statement)
        self._step(text, is_value=False)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            # The code's own modules cannot be had, and are not needed here.
            with contextlib.suppress(ImportError):
                exec(text, self._names)  # nosec B102 # noqa: S102 - in a sandbox

    def _step(self, code: str, *, is_value: bool) -> int:
        self.steps.append({"code": code, "is_value": is_value})
        return len(self.steps) - 1

    # Functions and loops that are written out

    def _function(self, function: ast.FunctionDef) -> Iterator[Formula]:
        """`check(candidate)` and `test_…()` are tests; others are set up."""
        arguments = self._arguments(function)
        if arguments is None:
            self._set_up(function)
            return
        self._test_functions.add(function.name)
        if function.decorator_list or _leaves(function):
            self._step(ast.unparse(function), is_value=False)
            call = f"{function.name}({', '.join(arguments)})"
            yield {"inside": self._step(call, is_value=False)}
            return
        for name in arguments:
            if name != function.args.args[0].arg:
                self._step(f"{function.args.args[0].arg} = {name}", is_value=False)
        self._known = _expected_names(ast.Module(body=function.body, type_ignores=[]))
        formulas = list(self._split_all(function.body))
        if function.name == "check":
            yield from formulas
        elif formulas:
            yield {"all": formulas}

    def _arguments(self, function: ast.FunctionDef) -> list[str] | None:
        """Return what it is to be called with; None: it is no test."""
        parameters = function.args
        num_parameters = len(parameters.args) + len(parameters.posonlyargs)
        if function.name == "check" and num_parameters == 1 and self._entry_point:
            return [self._entry_point]
        is_test = function.name.startswith("test") and not num_parameters
        return [] if is_test and not parameters.kwonlyargs else None

    def _unroll(self, loop: ast.For) -> list[list[ast.stmt]]:
        """Return the body once for each listed case; empty where it must be run as a
        loop.
        """
        if loop.orelse or not all(
            isinstance(statement, ast.Assert) for statement in loop.body
        ):
            return []
        try:
            cases = self._literal(loop.iter)
        except _NotSeparable:
            return []
        if not isinstance(cases, ast.List | ast.Tuple) or len(cases.elts) > _MAX_TURNS:
            return []
        turns = [_bind(loop.target, case) for case in cases.elts]
        if any(turn is None for turn in turns):
            return []
        return [
            [_Substitute(turn or {}).visit(_copy(statement)) for statement in loop.body]
            for turn in turns
        ]

    # Asserts

    def _assertion(self, statement: ast.Assert) -> Formula:
        num_steps = len(self.steps)
        try:
            return self._formula(statement.test)
        except _NotSeparable:
            del self.steps[num_steps:]
            whole = ast.Assert(test=statement.test, msg=None)
            code = ast.unparse(_Substitute(dict(self._known)).visit(_copy(whole)))
            return {"inside": self._step(code, is_value=False)}

    def _formula(self, test: ast.expr) -> Formula:
        if isinstance(test, ast.BoolOp):
            parts = [self._formula(value) for value in test.values]
            return {"all" if isinstance(test.op, ast.And) else "any": parts}
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return {"not": self._formula(test.operand)}
        if isinstance(test, ast.Compare):
            return self._comparison(test)
        if isinstance(test, ast.Call):
            name = ast.unparse(test.func)
            if name in ("math.isclose", "isclose") and len(test.args) == 2:
                left, right = map(self._operand, self._operands(test.args))
                near = {"relative": 1e-9, "absolute": 0.0}
                names = {"rel_tol": "relative", "abs_tol": "absolute"}
                for keyword in test.keywords:
                    if keyword.arg not in names:
                        raise _NotSeparable
                    near[names[keyword.arg]] = self._expected(keyword.value)
                return {"isclose": [left, right], **near}
            if name in _BUILT_IN and name != self._entry_point:
                # isinstance(f(1), int), all(…): the code may replace these
                raise _NotSeparable
            return {"truth": self._ask(test)}
        if any(isinstance(node, ast.Compare | ast.BoolOp) for node in ast.walk(test)):
            raise _NotSeparable
        return {"truth": self._ask(test)}

    def _comparison(self, test: ast.Compare) -> Formula:
        operators = [_OPERATORS[type(operator)] for operator in test.ops]
        operands = [test.left, *test.comparators]
        distance = _distance(operands[0])
        if distance and len(operands) == 2:
            left, right = map(self._operand, self._operands(list(distance)))
            limit = {"value": self._expected(operands[1])}
            return {"distance": [left, right], "operator": operators[0], "limit": limit}
        return {
            "compare": [self._operand(operand) for operand in self._operands(operands)],
            "operators": operators,
        }

    # Operands

    def _operands(self, operands: list[ast.expr]) -> list[ast.expr | Formula]:
        """Return each operand: what is expected as a value, what the code gives as it
        is.
        """
        sides: list[ast.expr | Formula] = [*operands]
        for number, operand in enumerate(operands):
            with contextlib.suppress(_NotSeparable):
                sides[number] = {
                    "value": encode(ast.literal_eval(self._literal(operand)))
                }
        # Worked out last to first: the code's side is mostly on the left, and its
        # function may bear the name of one that is built in.
        for number in reversed(range(len(operands))):
            is_last_open = sum(isinstance(side, ast.expr) for side in sides) == 1
            if isinstance(sides[number], ast.expr) and not is_last_open:
                with contextlib.suppress(_NotSeparable):
                    sides[number] = {"value": self._expected(operands[number])}
        return sides

    def _operand(self, side: ast.expr | Formula) -> Formula:
        return {"step": self._ask(side)} if isinstance(side, ast.expr) else side

    def _ask(self, expression: ast.expr) -> int:
        names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        if names & self._known.keys():
            raise _NotSeparable  # it is more than an operand after all
        return self._step(ast.unparse(expression), is_value=True)

    def _expected(self, expression: ast.expr) -> Any:
        """Work out its value without the code; _NotSeparable where that cannot be."""
        expression = self._literal_or_itself(expression)
        names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        if self._entry_point in names:
            raise _NotSeparable
        try:
            code = compile(ast.Expression(expression), "<test>", "eval")
            value = encode(eval(code, dict(self._names)))  # nosec B307 # noqa: S307 - in a sandbox
        except Exception:  # noqa: BLE001 - it needs the code's names, or has no value
            raise _NotSeparable from None
        if isinstance(value, dict) and "o" in value:
            raise _NotSeparable
        return value

    def _literal(self, expression: ast.expr) -> ast.expr:
        expression = self._literal_or_itself(expression)
        if not _is_literal(expression):
            raise _NotSeparable
        return expression

    def _literal_or_itself(self, expression: ast.expr) -> ast.expr:
        if isinstance(expression, ast.Name):
            return self._known.get(expression.id, expression)
        return expression


class _Substitute(ast.NodeTransformer):
    def __init__(self, names: dict[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._names.get(node.id, node)


def _expected_names(module: ast.Module) -> dict[str, ast.expr]:
    """Return names bound once to a literal, and used as a side of an assert's
    comparison only.

    One that is used otherwise may be changed by the code, so it is the code's.
    """
    bound: dict[str, list[ast.expr]] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                bound.setdefault(target.id, []).append(node.value)
    uses = _count_names(module.body)
    sides = _count_names(_sides_of_asserts(module.body), only_whole=True)
    return {
        name: values[0]
        for name, values in bound.items()
        if len(values) == 1
        and _is_literal(values[0])
        and uses[name] == sides.get(name, 0) + 1
    }


def _count_names(
    nodes: Iterable[ast.AST], *, only_whole: bool = False
) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in nodes:
        for part in [node] if only_whole else ast.walk(node):
            if isinstance(part, ast.Name):
                counts[part.id] = counts.get(part.id, 0) + 1
    return counts


def _sides_of_asserts(body: list[ast.stmt]) -> Iterator[ast.expr]:
    for statement in body:
        if isinstance(statement, ast.Assert):
            for node in ast.walk(statement.test):
                if isinstance(node, ast.Compare):
                    yield from (node.left, *node.comparators)


def _is_literal(expression: ast.expr) -> bool:
    try:
        ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _distance(expression: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """a and b of abs(a - b)."""
    if (
        isinstance(expression, ast.Call)
        and ast.unparse(expression.func) in ("abs", "math.fabs")
        and len(expression.args) == 1
        and isinstance(difference := expression.args[0], ast.BinOp)
        and isinstance(difference.op, ast.Sub)
    ):
        return difference.left, difference.right
    return None


def _bind(target: ast.expr, case: ast.expr) -> dict[str, ast.expr] | None:
    if isinstance(target, ast.Name):
        return {target.id: case}
    if (
        not isinstance(target, ast.Tuple)
        or not isinstance(case, ast.Tuple | ast.List)
        or len(target.elts) != len(case.elts)
    ):
        return None
    bound: dict[str, ast.expr] = {}
    for name, value in zip(target.elts, case.elts, strict=True):
        if not isinstance(name, ast.Name):
            return None
        bound[name.id] = value
    return bound


def _copy(statement: ast.stmt) -> ast.stmt:
    return ast.parse(ast.unparse(statement)).body[0]


def _leaves(function: ast.FunctionDef) -> bool:
    """Return whether its body cannot stand outside a function."""
    kinds = ast.Return | ast.Yield | ast.YieldFrom | ast.Nonlocal | ast.Await
    return any(isinstance(node, kinds) for node in ast.walk(function))
