"""What the recipe form says of a Python function's source, and does with it."""

from __future__ import annotations

import sys
from collections.abc import Container
from dataclasses import dataclass

from dashboard.rewards.trial import sandbox_here
from trainer.rewards.function_forms import (
    EXAMPLES,
    TITLES,
    Form,
    RewardFunction,
    recognise,
    select,
)
from trainer.rewards.sandbox.levels import LEVELS, packages_here

FORM_CHOICES = tuple(TITLES.items())
_EXAMPLES = {example.strip() for example in EXAMPLES.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReport:
    """A source, as the form describes it.

    Attributes:
        called: the function that the rule calls; None: none, or which is not said.
        functions: all reward functions of the source.
        others: the source's other reward functions that no other rule calls.
        refused: functions that are nearly of a form, and why they are not.
        fault: why the source cannot be parsed; "" where it can.
        missing: modules that it imports and the sandbox does not offer.
    """

    called: RewardFunction | None
    functions: tuple[RewardFunction, ...]
    others: tuple[RewardFunction, ...]
    refused: tuple[tuple[str, str], ...]
    fault: str
    missing: tuple[str, ...]

    @property
    def wrongly_annotated(self) -> list[RewardFunction]:
        """Those that are said to return another type than their form does."""
        return [each for each in self.functions if each.wrong_type]


def report_on(
    source: str, function: str, *, in_use: Container[str] = ()
) -> FunctionReport:
    """`in_use`: functions that other rules with this source call."""
    found = recognise(source)
    try:
        called = select(source, function.strip())
    except ValueError:
        called = None
    offered = {package.partition(" ")[0] for package in list_packages()}
    unknown = found.imports - sys.stdlib_module_names - offered
    return FunctionReport(
        called=called,
        functions=found.functions,
        others=tuple(
            each
            for each in found.functions
            if each.name not in in_use and (called is None or each != called)
        ),
        refused=tuple(found.refused.items()),
        fault=found.fault,
        # Without a sandbox nothing is offered, and that is said elsewhere.
        missing=tuple(sorted(unknown)) if sandbox_here().level else (),
    )


def list_packages() -> tuple[str, ...]:
    """What a function may import here beside the standard library, with versions."""
    level = sandbox_here().level
    known = next((each for each in LEVELS if each == level), None)
    if known is None:
        return ()
    packages = packages_here(known).items()
    return tuple(f"{name} {package.version}" for name, package in packages)


def is_example(source: str) -> bool:
    """Whether the source is one of the examples, untouched, or empty."""
    text = source.replace("\r\n", "\n").strip()
    return not text or text in _EXAMPLES


def insert_example(source: str, form: Form) -> str:
    """The source with a form's example, which replaces another example or follows it.

    Browsers send line ends as CR LF.
    """
    text, example = source.replace("\r\n", "\n"), EXAMPLES[form]
    if is_example(text):
        return example
    return text if example in text else f"{text.rstrip()}\n\n\n{example}"
