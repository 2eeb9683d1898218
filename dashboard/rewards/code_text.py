"""Whether a reward function's source is Python; it is parsed here, and never run."""

from __future__ import annotations

import ast
import warnings

from trainer.rewards.spec import RuleSpec


def find_code_fault(source: str) -> str:
    """A sentence with the line, or "" where nothing is wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()[:60]
        return (
            f"Line {error.lineno} is not valid Python: {error.msg}; got {line!r}. "
            "Correct the line."
        )
    except (ValueError, RecursionError, MemoryError):
        return "The code is nested too deep to be read. Make it flatter."
    return ""


def find_fault(rule: RuleSpec) -> str:
    """The same of a rule, whatever its kind."""
    if rule.kind != "python_function":
        return ""
    return find_code_fault(str(rule.params.get("source", "")))
