"""What a file's columns suggest: the mapping, the reward rule, and warnings."""

from __future__ import annotations

import json
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from dashboard.datasets.mapping import (
    MISSING,
    ROLES,
    Mapping,
    find_value,
    map_record,
    nested_names,
    typed,
)
from dashboard.datasets.parsing.records import (
    NotJson,
    Record,
    Refusal,
    Unusable,
    check_value,
)
from dashboard.datasets.prompt_template import read_template
from dashboard.datasets.row import Row, question_of
from trainer.rewards.extraction import unwrapped
from trainer.rewards.numbers import read_number
from trainer.rewards.rule import answers_of
from trainer.rewards.rules import RULES

# As published datasets name them, the likeliest first.
PROMPT_NAMES = (
    "prompt",
    "question",
    "problem",
    "query",
    "messages",
    "conversations",
    "conversation",
    "instruction",
    "description",
    "question_stem",
    "input",
    "text",
    "ctx",
    "goal",
    "user",
)
SYSTEM_NAMES = ("system", "system_prompt", "system_message")
ANSWER_NAMES = (
    "answer",
    "final_answer",
    "expected_answer",
    "ground_truth",
    "correct_answer",
    "correct answer",
    "reference_answer",
    "answerkey",
    "answers",
    "solution",
    "canonical_solution",
    "expected",
    "target",
    "label",
    "correct",
    "output",
    "response",
    "completion",
    "assistant",
)
# Inside columns of objects: verl, SQuAD, TriviaQA.
NESTED_ANSWERS = ("reward_model.ground_truth", "answers.text", "answer.aliases")
# A column with more text, and whether it comes before the prompt.
CONTEXTS = {
    "input": ("instruction", False),
    "context": ("question", True),
    "passage": ("question", True),
    "article": ("question", True),
    "body": ("question", True),
}
OPTION_NAMES = ("choices", "options", "answer_choices", "endings")
# One column for each option: A B C D, option_a option_b, opa opb, option1 option2.
OPTION_COLUMNS = (
    tuple(ascii_uppercase),
    tuple(ascii_lowercase),
    *(
        tuple(f"{prefix}{letter}" for letter in ascii_lowercase)
        for prefix in ("option_", "choice_", "op", "opt_")
    ),
    *(
        tuple(f"{prefix}{number}" for number in range(first, first + 26))
        for prefix in ("option", "choice", "ending", "sol")
        for first in (1, 0)
    ),
)
CHOICE_ANSWERS = ("answerkey", "answer_idx", "answer", "correct_option", "cop")
CHOICE_ANSWERS_TOO = (*CHOICE_ANSWERS, "label", "correct", "correct_answer", "gold")
TEST_NAMES = (
    *("test_list", "tests", "test", "test_cases", "input_output"),
    *("public_tests", "private_tests"),
)
COUNTDOWN_NUMBERS = ("nums", "numbers")
_LETTERED = re.compile(r"\(?[A-Z][).:]\s?")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    mapping: Mapping
    note: str = ""  # for the mapping page: what the file was taken for


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a multiple-choice question, as columns have them."""

    names: tuple[str, ...]  # of one column, or of one for each option
    texts: tuple[str, ...]  # of one row
    path: str = ""  # of the list, where the column is an object
    letters: bool = False  # the column is an object of texts by letter


class _Columns:
    """A file's columns by lower-case name, and the values of its first records."""

    def __init__(
        self, names: Sequence[str], records: Sequence[Record], *, is_text: bool
    ) -> None:
        self.names = names
        self._by_lower = {name.lower().strip(): name for name in names}
        self._records = records
        self._is_text = is_text

    def named(self, candidates: Iterable[str]) -> list[str]:
        names = (self._by_lower.get(name.lower()) for name in candidates)
        return [name for name in names if name is not None]

    def values(self, path: str) -> list[Any]:
        """List the values that are not null."""
        cells = (
            find_value(record.values, path, is_text=self._is_text)
            for record in self._records
        )
        values = [
            value for value in cells if value is not MISSING and value is not None
        ]
        return [typed(value) if self._is_text else value for value in values]

    def has_json(self, name: str) -> bool:
        """Return whether JSON has any of the column's values."""
        values = self.values(name)
        return not values or any(_is_json(value) for value in values)

    def is_text(self, name: str) -> bool:
        return all(isinstance(value, str) for value in self.values(name))


def _is_json(value: Any) -> bool:
    try:
        check_value(value)
    except Unusable as error:  # the import names others, with their rows
        return not isinstance(error, NotJson)
    return True


def suggest_mapping(
    names: Sequence[str],
    records: Sequence[Record] = (),
    before: Mapping | None = None,
    *,
    is_text: bool = False,
) -> Suggestion:
    """Return the mapping of the version before, or what names and first values suggest.

    Failing that, the first column is the prompt.
    """
    columns = _Columns(names, records, is_text=is_text)
    if before and _fits(before, columns):
        answer = before.answer
        if answer is not None and not _is_there(answer, columns):
            answer = _answer(columns, before.prompt)
        return Suggestion(mapping=_mapping(columns, before, answer=answer))
    suggestion = _suggestion(columns)
    system = next(
        (
            name
            for name in columns.named(SYSTEM_NAMES)
            if name in suggestion.mapping.columns
            and columns.values(name)
            and columns.is_text(name)
        ),
        "",
    )
    names_kept = tuple(name for name in suggestion.mapping.columns if name != system)
    return replace(
        suggestion,
        mapping=replace(suggestion.mapping, system=system, columns=names_kept),
    )


def _suggestion(columns: _Columns) -> Suggestion:
    prompt = next(iter(columns.named(PROMPT_NAMES)), columns.names[0])
    mapping = Mapping(prompt=prompt)
    for recognise in (_countdown, _multiple_choice, _code, _with_context):
        if suggestion := recognise(columns, prompt):
            return suggestion
    answer = _answer(columns, prompt)
    note = ""
    if answer == NESTED_ANSWERS[0]:
        note = "This looks like a verl file: the answer is reward_model.ground_truth."
    return Suggestion(mapping=_mapping(columns, mapping, answer=answer), note=note)


def _mapping(columns: _Columns, base: Mapping, *, answer: str | None) -> Mapping:
    """Build a mapping with all columns that are neither prompt nor answer, and that
    JSON can hold.
    """
    system = base.system if _is_there(base.system, columns) else ""
    used = (base.prompt, answer, system)
    return Mapping(
        prompt=base.prompt,
        template=base.template,
        answer=answer,
        columns=tuple(
            name
            for name in columns.names
            if name not in used and columns.has_json(name)
        ),
        system=system,
        last_reply=base.last_reply,
    )


def _fits(before: Mapping, columns: _Columns) -> bool:
    if before.template:
        return read_template(before.template).variables <= {*columns.names}
    return _is_there(before.prompt, columns)


def _is_there(name: str, columns: _Columns) -> bool:
    return name in columns.names or bool(columns.values(name))


def _answer(
    columns: _Columns, prompt: str, names: Sequence[str] = ANSWER_NAMES
) -> str | None:
    """Return the first column whose values can be answers."""
    nested = [name for name in NESTED_ANSWERS if columns.values(name)]
    for name in (*columns.named(names), *nested):
        values = columns.values(name)
        if name != prompt and all(_can_be_answer(value) for value in values):
            return name
    return None


def _can_be_answer(value: Any) -> bool:
    if isinstance(value, list):
        is_reply = len(value) == 1 and isinstance(value[0], dict) and "role" in value[0]
        return is_reply or not any(isinstance(it, list | dict | None) for it in value)
    return not isinstance(value, dict)


def _variable(column: str) -> str:
    """Return the column as a template names it."""
    is_plain = column.isidentifier() and not keyword.iskeyword(column)
    if is_plain and column not in ("loop", "row", "self", "true", "false", "none"):
        return column
    return f"row[{json.dumps(column, ensure_ascii=False)}]"


def first_template(names: Sequence[str]) -> str:
    """Write a template to begin with: the likeliest prompt alone."""
    prompt = next(iter(_Columns(names, (), is_text=False).named(PROMPT_NAMES)), "")
    return f"{{{{ {_variable(prompt or names[0])} }}}}"


def has_replies(records: Sequence[Record], prompt: str) -> bool:
    """Return whether a chat among the records ends with the assistant."""
    for record in records:
        chat = record.values.get(prompt)
        last = chat[-1] if isinstance(chat, list) and chat else None
        if isinstance(last, dict):
            role = last.get("role", last.get("from"))
            if isinstance(role, str) and ROLES.get(role) == "assistant":
                return True
    return False


def _countdown(columns: _Columns, _: str) -> Suggestion | None:
    """Numbers and a target without a prompt, as in TinyZero's files."""
    names = columns.named(COUNTDOWN_NUMBERS)
    targets = columns.named(["target"])
    if not (names and targets) or columns.named(PROMPT_NAMES):
        return None
    numbers, target = _variable(names[0]), _variable(targets[0])
    template = (
        f"Using the numbers {{{{ {numbers} | join(', ') }}}}, write an equation that "
        f"equals {{{{ {target} }}}}. Use each number once, with + - * / and "
        "parentheses."
    )
    return Suggestion(
        mapping=_mapping(columns, Mapping(template=template), answer=None),
        note="This looks like Countdown: the template writes the task.",
    )


def _multiple_choice(columns: _Columns, prompt: str) -> Suggestion | None:
    options = find_options(
        {name: next(iter(columns.values(name)), None) for name in columns.names}
    )
    if options is None or not columns.is_text(prompt):
        return None
    answer = _choice_answer(columns, prompt, options)
    if not (answer or options.path):
        return None  # columns a and b may be anything
    questions = columns.values(prompt)
    if questions and all(text in questions[0] for text in options.texts):
        mapping = Mapping(prompt=prompt)  # it has the options already
        note = "This looks like multiple choice: the prompt lists the options."
    else:
        mapping = Mapping(template=_choice_template(columns, prompt, options))
        note = (
            "This looks like multiple choice: the template writes the question and its "
            "options with letters."
        )
    return Suggestion(mapping=_mapping(columns, mapping, answer=answer), note=note)


def find_options(row: dict[str, Any]) -> Options | None:
    """Return the options among the values of a row."""
    by_lower = {name.lower().strip(): name for name in row}
    for option_name in OPTION_NAMES:
        name = by_lower.get(option_name)
        options = None if name is None else _options_in(name, row[name])
        if options is not None:
            return options
    for wanted_names in OPTION_COLUMNS:
        names = tuple(takewhile(row.__contains__, wanted_names))
        texts = tuple(_option_text(row[name]) for name in names)
        least = 3 if len(wanted_names[0]) == 1 else 2
        if len(names) >= least and all(texts):
            return Options(names=names, texts=tuple(text or "" for text in texts))
    return None


def _options_in(name: str, value: Any) -> Options | None:
    listed, path, letters = value, name, False
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        listed, path = value["text"], f"{name}.text"
    elif isinstance(value, dict) and all(len(key) == 1 for key in value):
        listed, letters = [it for it in value.values() if it is not None], True
    if not isinstance(listed, list) or not 2 <= len(listed) <= len(ascii_uppercase):
        return None
    texts = [_option_text(item) for item in listed]
    if not all(texts):
        return None
    options = tuple(text or "" for text in texts)
    return Options(names=(name,), texts=options, path=path, letters=letters)


def _option_text(value: Any) -> str | None:
    if isinstance(value, str) and value.strip():
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else None


def _choice_template(columns: _Columns, prompt: str, options: Options) -> str:
    contexts = [
        name
        for context, (base, is_before) in CONTEXTS.items()
        if is_before and prompt.lower() == base
        for name in columns.named([context])
        if columns.is_text(name)
    ]
    lines = []
    for name in (*contexts[:1], prompt):
        lines += [f"{{{{ {_variable(name)} }}}}", ""]
    column = options.names[0]
    listed = _variable(column) + options.path.removeprefix(column)
    if not options.path:
        lines += [
            f"{letter}) {{{{ {_variable(name)} }}}}"
            for letter, name in zip(ascii_uppercase, options.names, strict=False)
        ]
    elif options.letters:
        lines += [
            f"{{% for letter, option in {listed} | items %}}",
            "{% if option is not none %}",
            "{{ letter }}) {{ option }}",
            "{% endif %}",
            "{% endfor %}",
        ]
    else:
        is_lettered = all(_LETTERED.match(text) for text in options.texts)
        letter = "" if is_lettered else "{{ loop.index0 | letter }}) "
        lines += [
            f"{{% for option in {listed} %}}",
            letter + "{{ option }}",
            "{% endfor %}",
        ]
    return "\n".join(lines)


def _choice_answer(columns: _Columns, prompt: str, options: Options) -> str | None:
    """Return the first column whose values name an option."""
    for name in columns.named(CHOICE_ANSWERS_TOO):
        texts = [_option_text(value) for value in columns.values(name)]
        names_one = bool(texts and _ways_to_name(texts[0], options))
        if name not in (prompt, *options.names) and names_one:
            return name
    return None


def _ways_to_name(text: str | None, options: Options) -> set[str]:
    """Return how the text may name one of the options: "2" may be a text or an
    index.
    """
    text = (text or "").strip()
    text = text.strip("().:") if len(text) <= 4 else text
    letters = ascii_uppercase[: len(options.texts)]
    ways = set()
    if (len(text) == 1 and text.upper() in letters) or text in options.texts:
        ways.add("letter_or_text")
    if text.isdecimal() and len(text) < 10 and int(text) <= len(letters):
        ways.add("number")
    return ways


def _with_context(columns: _Columns, prompt: str) -> Suggestion | None:
    """Alpaca's instruction and input; a question about a text."""
    for name, (base, is_before) in CONTEXTS.items():
        for context in columns.named([name]):
            if prompt.lower() != base or not columns.is_text(context):
                continue
            pair = (context, prompt) if is_before else (prompt, context)
            first, second = (f"{{{{ {_variable(name)} }}}}" for name in pair)
            mapping = _mapping(
                columns,
                Mapping(template=f"{first}\n\n{second}"),
                answer=_answer(columns, prompt),
            )
            note = f"The template joins the columns {pair[0]} and {pair[1]}."
            return Suggestion(mapping=mapping, note=note)
    return None


def _code(columns: _Columns, prompt: str) -> Suggestion | None:
    """MBPP's text and its first test; HumanEval's prompt has examples already."""
    for name in columns.named(TEST_NAMES):
        values = columns.values(name)
        if not values or not isinstance(values[0], list) or not columns.is_text(prompt):
            continue
        if not all(isinstance(it, str) and "assert" in it for it in values[0]):
            continue
        template = (
            f"{{{{ {_variable(prompt)} }}}}\n\nYour code should pass this test:\n\n"
            f"{{{{ {_variable(name)}[0] }}}}"
        )
        answer = _answer(columns, prompt)
        return Suggestion(
            mapping=_mapping(columns, Mapping(template=template), answer=answer),
            note="This looks like a code task: the template adds the first test.",
        )
    return None


@dataclass(frozen=True, kw_only=True)
class RuleSuggestion:
    """A rule that can score these rows, with its parameters."""

    kind: str
    params: dict[str, Any]
    reason: str

    @property
    def title(self) -> str:
        return RULES[self.kind].title


def suggest_rule(rows: Sequence[Row]) -> RuleSuggestion | None:
    """Return the rule that the first rows' columns and answers call for."""
    if not rows:
        return None
    columns = rows[0].columns
    options = find_options(columns)
    answers = [row.answer for row in rows if row.answer is not None]
    if options is not None and answers:
        return _choice_rule(rows, options)
    if numbers := _numbers_column(columns):
        return RuleSuggestion(
            kind="countdown",
            params={} if numbers == "numbers" else {"numbers_column": numbers},
            reason=f"The columns {numbers} and target are a Countdown task.",
        )
    if name := _tests_column(columns):
        return RuleSuggestion(
            kind="code_tests",
            params={"tests_column": name},
            reason=f"The column {name} has tests.",
        )
    texts = [text for answer in answers for text in answers_of(answer)]
    if not texts or any(_is_object(text) for text in texts):
        return None
    num_numbers = sum(_is_number(text) for text in texts)
    if num_numbers >= MOST * len(texts):
        counted = "The" if num_numbers == len(texts) else f"{num_numbers} of the"
        return RuleSuggestion(
            kind="numeric_answer",
            params={},
            reason=f"{counted} first {len(texts)} answers are numbers.",
        )
    if any("\\" in text or "^" in text for text in texts):
        short = sum(len(text) <= _FORMULA_CHARS for text in texts)
        if 2 * short >= len(texts):
            return RuleSuggestion(
                kind="math_verify", params={}, reason="The answers are formulas."
            )
    if all(len(text) <= _SHORT_CHARS and "\n" not in text for text in texts):
        return RuleSuggestion(
            kind="exact_answer", params={}, reason="The answers are short texts."
        )
    return None


DESCRIBED_ROWS = 10
_ANSWER_TYPES = {
    "numeric_answer": "number",
    "math_verify": "formula",
    "multiple_choice": "choice",
    "code_tests": "code",
}


def describe(rows: Sequence[Row]) -> dict[str, str]:
    """`first_prompt` and `answer_type` of a version, by its first rows."""
    question = question_of(rows[0].prompt)[: 10 * MAX_DESCRIBED_CHARS]
    rule = suggest_rule(rows)
    has_answers = any(row.answer is not None for row in rows)
    by_default = "text" if has_answers else "none"
    return {
        "first_prompt": " ".join(question.split())[:MAX_DESCRIBED_CHARS] or "–",
        "answer_type": _ANSWER_TYPES.get(rule.kind if rule else "", by_default),
    }


MAX_DESCRIBED_CHARS = 200
MOST = 0.8  # of the answers: the others are mistakes
_FORMULA_CHARS = 200
_SHORT_CHARS = 60


def _is_number(text: str) -> bool:
    # GSM8K has the solution before it.
    number = unwrapped(text.rpartition("####")[2], "answer")
    is_short = len(number) <= _FORMULA_CHARS
    return is_short and read_number(number, with_unit=True) is not None


def _is_object(text: str) -> bool:
    """Return whether the text is JSON with names in it: constraints, or a case to
    run.
    """
    value = typed(text.strip())
    return isinstance(value[0] if isinstance(value, list) and value else value, dict)


def _numbers_column(columns: dict[str, Any]) -> str | None:
    """Find the numbers' column of a Countdown task, which has a target too."""
    for name in COUNTDOWN_NUMBERS:
        if isinstance(columns.get(name), list) and "target" in columns:
            return name
    return None


def _tests_column(columns: dict[str, Any]) -> str | None:
    for name in columns:
        if name.lower() in TEST_NAMES and _are_tests(columns[name]):
            return name
    return None


def _are_tests(value: Any) -> bool:
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = typed(value.strip())
    if isinstance(value, str):
        return "assert" in value or "check(" in value
    if isinstance(value, dict):
        keys = {key.removesuffix("s") for key in value}
        return {"input", "output"} <= keys
    if not isinstance(value, list) or not value:
        return False
    first = value[0]
    if isinstance(first, dict):
        return {"input", "output"} <= first.keys()
    return isinstance(first, str) and "assert" in first


def _choice_rule(rows: Sequence[Row], options: Options) -> RuleSuggestion | None:
    texts, counts, all_ways = [], [], []
    for row in rows:
        row_options = find_options(row.columns)
        if row_options is not None and row.answer is not None:
            texts.append(answers_of(row.answer)[0].strip())
            counts.append(len(row_options.texts))
            all_ways.append(_ways_to_name(texts[-1], row_options))
    ways = set.intersection(*all_ways) if all_ways else set()
    if not ways:
        return None
    params: dict[str, Any] = {"options_column": ", ".join(options.names)}
    params["num_options"] = max(counts)
    how = "letters or texts"
    if ways == {"number"}:
        numbers = [int(text) for text in texts]
        pairs = zip(numbers, counts, strict=True)
        is_from_1 = 0 not in numbers and any(number == count for number, count in pairs)
        params["answer_as"] = "number_from_1" if is_from_1 else "number_from_0"
        how = "indexes from 1" if is_from_1 else "indexes from 0"
    where = ", ".join(options.names)
    plural = "column has" if len(options.names) == 1 else "columns have"
    return RuleSuggestion(
        kind="multiple_choice",
        params=params,
        reason=f"The {plural} the options ({where}); the answers are {how}.",
    )


@dataclass(frozen=True, kw_only=True)
class Fix:
    """A change of the mapping that lets failing rows in."""

    label: str
    mapping: Mapping


MAX_FIXES = 3  # of one problem
_FIXED_WITH = 50  # failing rows that a change is tried on, and as many good ones


def suggest_fixes(
    refused: Refusal,
    failing: Sequence[Record],
    good: Sequence[Record],
    mapping: Mapping,
    *,
    is_text: bool,
) -> list[Fix]:
    """Changes that let in most of the failing records, and keep the good ones.

    Without failing records, as of rows beyond the sample: changes that need none.
    """
    failing, good = failing[:_FIXED_WITH], good[:_FIXED_WITH]

    def num_good(fix: Fix) -> int:
        mapped = [
            map_record(record, fix.mapping, is_text=is_text)
            for record in (*failing, *good)
        ]
        return sum(isinstance(row, Row) for row in mapped)

    fixes = list(_changes(refused, failing, good, mapping, is_text=is_text))
    if failing:
        counts = {fix.label: num_good(fix) for fix in fixes}
        fixes = [fix for fix in fixes if counts[fix.label] > len(good)]
        fixes.sort(key=lambda fix: -counts[fix.label])  # stable: the likeliest first
    return fixes[:MAX_FIXES]


def _changes(
    refused: Refusal,
    failing: Sequence[Record],
    good: Sequence[Record],
    mapping: Mapping,
    *,
    is_text: bool,
) -> Iterator[Fix]:
    column = refused.column
    columns = _Columns(
        list(
            dict.fromkeys(
                name for record in (*failing, *good) for name in record.values
            )
        ),
        failing,
        is_text=is_text,
    )
    if column is None:
        if mapping.template and failing:
            yield from _other_prompts(columns, mapping)
    elif column == mapping.prompt:
        if mapping.last_reply == "refuse":
            for label, reply in (
                ("Use the last reply as the answer", "answer"),
                ("Remove the last reply", "drop"),
            ):
                yield Fix(label=label, mapping=replace(mapping, last_reply=reply))
        if failing:
            yield from _other_prompts(columns, mapping)
    elif column == mapping.answer:
        inside = nested_names(failing, is_text=is_text)
        for name in (
            *(name for name in inside if name.startswith(f"{column}.")),
            *columns.named(ANSWER_NAMES),
            *(name for name in NESTED_ANSWERS if name in inside),
        ):
            if name not in (mapping.prompt, mapping.answer):
                yield Fix(
                    label=f"Use “{name}” as the answer",
                    mapping=replace(
                        mapping, answer=name, columns=_without(mapping, name)
                    ),
                )
        if columns.values(column):
            yield Fix(
                label=f"Keep “{column}” as an extra column",
                mapping=replace(
                    mapping, answer=None, columns=(*mapping.columns, column)
                ),
            )
        yield Fix(label="Import without answers", mapping=replace(mapping, answer=None))
    elif column in mapping.columns:
        columns_kept = tuple(name for name in mapping.columns if name != column)
        yield Fix(
            label=f"Leave out column “{column}”",
            mapping=replace(mapping, columns=columns_kept),
        )


def _other_prompts(columns: _Columns, mapping: Mapping) -> Iterator[Fix]:
    for name in dict.fromkeys([*columns.named(PROMPT_NAMES), *columns.names]):
        if name not in (mapping.prompt, mapping.answer):
            yield Fix(
                label=f"Use “{name}” as the prompt",
                mapping=replace(
                    mapping, prompt=name, template="", columns=_without(mapping, name)
                ),
            )


def _without(mapping: Mapping, name: str) -> tuple[str, ...]:
    return tuple(it for it in mapping.columns if it != name)


# About 4,000 tokens: more than many small models' context leaves for the prompt.
LONG_PROMPT_CHARS = 16_000
MANY_EQUAL = 0.2


@dataclass(frozen=True, kw_only=True)
class ImportWarning:
    """A doubt about rows, though each can be imported."""

    code: str
    count: int
    num_rows: int  # that were looked at
    problem: str
    remedy: str


def warn(rows: Sequence[Row]) -> list[ImportWarning]:
    """Warnings of rows that have no errors."""
    emptied = sorted({name for row in rows for name in row.left_empty})
    num_equal = len(rows) - len(Counter(str(row.prompt) for row in rows))
    counts = [
        (
            "equal_prompts",
            num_equal if num_equal > MANY_EQUAL * len(rows) else 0,
            "have the prompt of an earlier row",
            "They may be duplicates, or the template may lack a column.",
        ),
        (
            "no_answer",
            # Code tests and Countdown need none.
            sum(
                row.answer is None
                and not (_tests_column(row.columns) or _numbers_column(row.columns))
                for row in rows
            ),
            "have no answer",
            "Rules that compare with the answer give these rows no score.",
        ),
        (
            "long_prompts",
            sum(_num_chars(row) > LONG_PROMPT_CHARS for row in rows),
            f"have a prompt of more than {LONG_PROMPT_CHARS:,} characters (about "
            "4,000 tokens)",
            "Check that the model's context is long enough.",
        ),
        (
            "options_missing",
            sum(_lacks_option(row) for row in rows),
            "have a prompt without the texts of all options",
            "Write a prompt template that lists the options.",
        ),
        (
            "left_empty",
            sum(bool(row.left_empty) for row in rows),
            "have a value that JSON cannot hold, such as NaN or bytes, in "
            + ", ".join(emptied[:3]),
            "These values are left empty.",
        ),
    ]
    return [
        ImportWarning(
            code=code, count=count, num_rows=len(rows), problem=problem, remedy=remedy
        )
        for code, count, problem, remedy in counts
        if count
    ]


def _num_chars(row: Row) -> int:
    if isinstance(row.prompt, str):
        return len(row.prompt)
    return sum(len(message.get("content") or "") for message in row.prompt)


def _lacks_option(row: Row) -> bool:
    options = find_options(row.columns)
    if options is None:
        return False
    prompt = row.prompt if isinstance(row.prompt, str) else str(row.prompt)
    return not all(text in prompt for text in options.texts)
