"""What a view may write into the audit log, as its code tells.

From the view on, whatever of ours its code names is followed: functions, the methods of
classes, the values of tables. So what is found is all verbs that may be written, and
now and then one more, of something that two views share.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dashboard.accounts.services import record, record_each
from dashboard.jobs.kinds import all_kinds

VERB = re.compile(r"[a-z]+(?:_[a-z]+)*\.[a-z_]+")
WRITERS = (record, record_each)


def verbs_of(view: Callable[..., Any]) -> set[str]:
    """Empty where no entry can be written."""
    all_kinds()  # of the jobs that views ask for, which are loaded when one is wanted
    reached = _Reached()
    reached.follow(view)
    return reached.words if reached.writes else set()


class _Reached:
    def __init__(self) -> None:
        self.words: set[str] = set()
        self.writes = False
        self._seen: set[int] = set()

    def follow(self, found: Any) -> None:
        if isinstance(found, str):
            self.words.update([found] if VERB.fullmatch(found) else [])
        elif isinstance(found, Mapping | tuple | list):
            values = found.values() if isinstance(found, Mapping) else found
            self._each(found, values)
        elif is_dataclass(found) and not isinstance(found, type):
            self._each(found, [getattr(found, one.name) for one in fields(found)])
        elif isinstance(found, type) and _is_ours(found):
            self._each(found, vars(found).values())
        elif isinstance(found, property):
            self.follow(found.fget)
        elif callable(found):
            self._function(inspect.unwrap(found))

    def _each(self, owner: Any, values: Any) -> None:
        if id(owner) not in self._seen:
            self._seen.add(id(owner))
            for value in [*values]:
                self.follow(value)

    def _function(self, function: Any) -> None:
        function = getattr(function, "func", function)  # of a partial, a cached one
        if isinstance(function, MethodType | classmethod | staticmethod):
            function = function.__func__
        if function in WRITERS:
            self.writes = True
        elif isinstance(function, FunctionType) and _is_ours(function):
            self._each(function, _named_by(function))


def _is_ours(found: Any) -> bool:
    return (found.__module__ or "").startswith("dashboard.")


def _named_by(function: FunctionType) -> Iterator[Any]:
    """Constants, and what its names stand for in its module, or in one it names."""
    names = function.__globals__
    for code in _codes(function.__code__):
        yield from (one for one in code.co_consts if isinstance(one, str))
        for name in code.co_names:
            found = names.get(name)
            if not isinstance(found, ModuleType):
                yield found
            elif found.__name__.startswith("dashboard."):
                yield from (getattr(found, one, None) for one in code.co_names)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
