"""Rules, their inputs and their logs."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import re2
from pydantic import BaseModel, ConfigDict

# A row's ground truth: a text, or several of which any is right.
Answer = str | list[str]
MAX_ANSWERS = 100  # of a row: a rule compares with each
# Of a chat: role and content, and of one with tools also tool_calls, tool_call_id, …
Message = dict[str, Any]


def as_answer(texts: Sequence[str]) -> Answer | None:
    """Several answers as a row keeps them: one is a text, none is no answer.

    >>> as_answer(["4"])
    '4'
    """
    return list(texts) if len(texts) > 1 else next(iter(texts), None)


def answers_of(answer: Answer | None) -> list[str]:
    """Return the texts of which any is right; none where there is no answer."""
    if answer is None:
        return []
    return answer if isinstance(answer, list) else [answer]


def read_answer(value: Any) -> Answer | None:
    """Return the answer that a row's JSON has; numbers and booleans as JSON writes
    them.

    >>> read_answer([5, "five"])
    ['5', 'five']

    Raises:
        ValueError: it is, or has inside a list, what is no text and no number; or the
            list has more than MAX_ANSWERS.
    """
    answers = value if isinstance(value, list) else [value]
    if value is None:
        return None
    if len(answers) > MAX_ANSWERS:
        raise ValueError(
            f"the row has {len(answers):,} answers; the limit is {MAX_ANSWERS}"
        )
    if not all(isinstance(part, str | int | float) for part in answers):
        raise ValueError(
            "the answer must be text, a number, a list of them or null; got "
            f"{json.dumps(value)[:80]}"
        )
    return as_answer(
        [part if isinstance(part, str) else json.dumps(part) for part in answers]
    )


@dataclass(frozen=True)
class Sample:
    """A completion of a prompt, with what the row knows about it.

    `answer` is the row's ground truth, of a list any; `columns` are the row's other
    columns, as JSON values. `messages` are the conversation that the completion
    answers, where `prompt` is the text that a model was given: with the marks of its
    chat template. Of a reasoning step, `before` is what stands before it in its
    answer. `is_chat`: the row's own prompt is a list of messages. `token_ids` are
    those of the completion, where a rule that reads them is asked during a run.

    Of an episode, `completion` is what the policy wrote in all its turns. `turns` are
    its messages, each with role and content; the policy's (assistant) with the reward
    that the environment gave, a tool's with name and call. `environment_reward` is
    that of the whole episode.

    Where the row's last message begins the answer, `begun` is that text with
    `data.completion_prefix`, and neither `prompt` nor `messages` have it: the model
    was given `prompt` + `begun`. Rules judge `text`, the whole answer; judges, reward
    models and functions read it as the completion. Lengths and repetition count the
    completion alone, as the policy wrote no more. Of a reasoning step, `before` has
    what was begun, and `begun` is empty.

    >>> Sample("2+2?", "4</answer>", "4", begun="<answer>").text
    '<answer>4</answer>'
    """

    prompt: str
    completion: str
    answer: Answer | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] = ()
    before: str = ""
    is_chat: bool = False
    token_ids: Sequence[int] | None = None
    begun: str = ""
    turns: Sequence[Mapping[str, Any]] = ()
    environment_reward: float | None = None

    @property
    def text(self) -> str:
        """The whole answer."""
        return self.begun + self.completion


def column_of(columns: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """Return the column of that name, or the value inside a column that a dotted path
    names.

    A path's part is a name in an object, or an index in a list.

    >>> column_of({"extra_info": {"tests": ["a", "b"]}}, "extra_info.tests.1")
    'b'
    """
    if path in columns:
        return columns[path]
    value: Any = columns
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and (index := _index(part)) < len(value):
            value = value[index]
        else:
            return default
    return value


def _index(part: str) -> int:
    is_index = part.isascii() and part.isdigit() and len(part) < 10
    return int(part) if is_index else sys.maxsize


def replace_surrogates(text: str) -> str:
    """Half of a surrogate pair, which is no UTF-8, becomes U+FFFD."""
    if text.isascii():  # as most are, which Python knows without reading them
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def quote(value: Any) -> str:
    """Return a value as a sentence can show it: on one line, and not too long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


class Unscorable(Exception):
    """The row cannot be judged: a column is missing, a reference cannot be read.

    It is no fault of the completion, so the rule gives no score rather than 0: a 0
    would teach the policy that its answer was wrong. The text names the row's value
    and the remedy.
    """

    def __init__(self, sentence: str) -> None:
        # A function, a judge or a row may be quoted.
        super().__init__(replace_surrogates(sentence))


class NotApplicable(Unscorable):
    """The row has nothing for the rule to judge by, and that is no one's fault.

    As where a dataset has answers for some of its prompts. It gives no score either,
    but does not count among the errors that end a run.
    """


def require_column(sample: Sample, column: str) -> Any:
    """Return what `column_of` finds; NotApplicable when the row has no such column."""
    value = column_of(sample.columns, column)
    if value is None:
        there = ", ".join(sorted(sample.columns)) or "none"
        raise NotApplicable(
            f'The row has no column "{column}" (its columns: {there}). Name the right '
            "column in the rule, or keep it as an extra column when mapping the "
            "dataset."
        )
    return value


def message_text(message: Mapping[str, Any]) -> str:
    """Return what a message says: its content, and its tool calls, each on a line.

    >>> message_text({"content": None, "tool_calls": [{"function": {
    ...     "name": "add", "arguments": {"a": 2}}}]})
    'add({"a": 2})'
    """
    content = message.get("content") or ""
    if not message.get("tool_calls"):
        return str(content)
    calls = (f"{name}({arguments})" for name, arguments in tool_calls(message))
    return "\n".join(filter(None, [str(content), *calls]))


def tool_calls(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and arguments of the tools that a message calls; the latter as JSON."""
    calls = message.get("tool_calls")
    pairs = []
    for call in calls if isinstance(calls, list) else []:
        call = call if isinstance(call, dict) else {}
        inner = call.get("function", call)
        inner = inner if isinstance(inner, dict) else {}
        arguments = inner.get("arguments") or {}
        text = (
            arguments
            if isinstance(arguments, str)
            else json.dumps(arguments, ensure_ascii=False)
        )
        pairs.append((str(inner.get("name") or "?"), text))
    return pairs


def conversation(
    prompt: str | Sequence[Message],
    columns: Mapping[str, Any],
    *,
    system_prompt: str | None,
    prompt_template: str | None,
    where: str,
) -> list[Message]:
    """Return the row's prompt behind the system prompt, filled into the template.

    Args:
        where: names the row in errors, as in "row 3 (line 4)".

    Raises:
        ValueError: the template cannot be filled with this row.
    """
    messages: list[Message] = []
    if system_prompt is not None:
        messages.append({"role": "system", "content": system_prompt})
    if not isinstance(prompt, str):
        if prompt_template is not None:
            raise ValueError(
                f"{where[:1].upper()}{where[1:]} is a list of messages, which "
                "data.prompt_template does not support. Leave the template empty."
            )
        return messages + list(prompt)
    content = prompt
    if prompt_template is not None:
        content = fill_template(prompt_template, prompt, columns, where=where)
    return [*messages, {"role": "user", "content": content}]


def split_prefill(
    messages: Sequence[Message], prefix: str = ""
) -> tuple[list[Message], str]:
    """Return a conversation without the answer that its last message begins, and the
    text of that answer; "" where it begins none.

    Args:
        prefix: of every completion, which follows.

    >>> split_prefill([{"role": "assistant", "content": "It is"}], " <b>")
    ([], 'It is <b>')
    """
    last = messages[-1] if messages else {}
    content = last.get("content")
    if (
        last.get("role") != "assistant"
        or last.get("tool_calls")
        or not isinstance(content, str)
        or not content.strip()
    ):
        return list(messages), ""
    return list(messages[:-1]), content + prefix


def fill_template(
    template: str,
    prompt: str,
    columns: Mapping[str, Any],
    *,
    where: str,
    setting: str = "data.prompt_template",
) -> str:
    """Put the prompt and columns of a row where the template names them in braces.

    Braces that enclose no name or dotted path stay as they are, so a template may show
    JSON.
    """
    values = {**columns, "prompt": prompt}

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        column = column_of(values, name, _MISSING)
        if column is _MISSING:
            raise ValueError(
                f"{setting} uses {{{name}}}, which {where} does not have. "
                f"It has {', '.join(sorted(values))}."
            )
        return column if isinstance(column, str) else json.dumps(column)

    return IN_BRACES.sub(value, template)


# A column in a template: its name, or a dotted path.
IN_BRACES = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_MISSING = object()


# However much is printed, a run of 10,000 steps then has some gigabytes at most.
MAX_STEP_CHARS = 262_144
MAX_COMPLETION_CHARS = 8_192

_kept: ContextVar[list[str] | None] = ContextVar("kept", default=None)


@contextmanager
def keeping() -> Iterator[list[str]]:
    """Collect the texts given to `tell` inside, in order."""
    texts: list[str] = []
    token = _kept.set(texts)
    try:
        yield texts
    finally:
        _kept.reset(token)


def tell(text: str) -> None:
    """Keep a text, where someone does."""
    texts = _kept.get()
    if texts is not None and text:
        texts.append(text)


_measured: ContextVar[dict[str, float] | None] = ContextVar("measured", default=None)


@contextmanager
def measuring() -> Iterator[dict[str, float]]:
    """Collect the numbers given to `measure` inside, by name."""
    numbers: dict[str, float] = {}
    token = _measured.set(numbers)
    try:
        yield numbers
    finally:
        _measured.reset(token)


def measure(numbers: Mapping[str, float]) -> None:
    """Keep finite numbers that a rule gives beside its score, where someone does."""
    kept = _measured.get()
    if kept is not None:
        kept.update(numbers)


_usage: ContextVar[Counter[str] | None] = ContextVar("usage", default=None)


@contextmanager
def counting_usage() -> Iterator[Counter[str]]:
    """Add up the calls and tokens given to `count_usage` inside."""
    usage = Counter[str]()
    token = _usage.set(usage)
    try:
        yield usage
    finally:
        _usage.reset(token)


def count_usage(usage: Mapping[str, int]) -> None:
    """Count calls and tokens of a judge, where someone does."""
    counted = _usage.get()
    if counted is not None:
        counted.update(usage)


class Notes(NamedTuple):
    """The notes of rules on one completion, as far as an event carries it, by rule."""

    logs: dict[str, str]  # what they printed
    errors: dict[str, str]  # why they gave no score


def cut_notes(all_notes: Sequence[Notes], *, num_groups: int) -> list[Notes]:
    """Cut what rules said of a group's completions to what its event carries.

    A step's events carry 262,144 characters of it, the same for each of its groups,
    and of one completion 8,192. Errors come before what was printed, and a text for
    which nothing is left is left out.

    >>> cut_notes([Notes({"f": "abc"}, {})], num_groups=1)
    [Notes(logs={"f": "abc"}, errors={})]
    """
    of_group = MAX_STEP_CHARS // max(num_groups, 1)
    left = [MAX_COMPLETION_CHARS] * len(all_notes)
    kept = [Notes({}, {}) for _ in all_notes]
    for part in ("errors", "logs"):
        for index, notes in enumerate(all_notes):
            for name, text in getattr(notes, part).items():
                room = min(left[index], of_group)
                if room == 0:
                    continue
                getattr(kept[index], part)[name] = (
                    text
                    if len(text) <= room
                    else f"{text[:room]}\n… {room:,} of {len(text):,} characters\n"
                )
                left[index] -= min(room, len(text))
                of_group -= min(room, len(text))
    return kept


def shown(data: bytes, num_bytes: int) -> str:
    """Return the first bytes of an output of so many, and how much is missing.

    >>> shown(b"abc", 5)
    "abc\\n… 3 of 5 bytes\\n"
    """
    # Neither a cut character nor one that no database stores.
    text = data.decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    if num_bytes > len(data):
        text += f"\n… {len(data):,} of {num_bytes:,} bytes\n"
    return text


class Params(BaseModel):
    """Parameters of a rule: frozen, bounded; unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


P = TypeVar("P", bound=Params)
# A score, or why there is none.
Outcome = float | Unscorable


@dataclass(frozen=True, kw_only=True)
class Example:
    """A sample and parameters that show what a rule rewards.

    `others` are the completions beside it, for a rule that compares a group.
    """

    sample: Sample
    params: dict[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @property
    def group(self) -> list[Sample]:
        """The sample and those beside it, as they are judged."""
        others = (replace(self.sample, completion=text) for text in self.others)
        return [self.sample, *others]


def from_zero_to_one(params: Params) -> tuple[float, float]:
    return (0.0, 1.0)


Judge = Callable[[Sequence[Sample], P], Sequence[Outcome]]


def all_outcomes(
    judge: Judge[P], samples: Sequence[Sample], params: P
) -> list[Outcome]:
    """Return an outcome for each; what is raised instead is that of all."""
    try:
        outcomes = list(judge(samples, params))
    except Unscorable as error:
        return [error] * len(samples)
    assert len(outcomes) == len(samples), f"{len(outcomes)} outcomes of {len(samples)}"
    return outcomes


@dataclass(frozen=True, kw_only=True)
class Batching(Generic[P]):
    """The way to ask a rule that waits for others, as a model behind an address.

    `score(samples, params)` is given completions of any prompts, at most `most_at_once`
    of them, by several threads at the same time, at most `num_calls`. Groups that are
    complete while all calls are under way wait, and go together with the next one. So
    it must not compute for long itself; it runs in the trainer's process, where its
    secrets are.
    """

    score: Judge[P]
    most_at_once: Callable[[P], int]
    num_calls: Callable[[P], int]

    def ask(self, samples: Sequence[Sample], params: P) -> list[Outcome]:
        """Return an outcome for each completion, by calls that are not larger than
        allowed.
        """
        most = self.most_at_once(params)
        return [
            outcome
            for first in range(0, len(samples), most)
            for outcome in all_outcomes(
                self.score, samples[first : first + most], params
            )
        ]


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[P]):
    """A way to judge completions; exactly one of the three is given, or the first two
    and `compares`, which says by the parameters which of them judges.

    `score(sample, params)` judges one by itself. `score_group(samples, params)` judges
    all completions of one prompt, and `batching` says how to ask for those of many; the
    two give an outcome for each, in order.

    A score is a finite number within `bounds(params)`. Without one, a rule raises (or
    gives as outcome) `NotApplicable` when the row, not the completion, is at fault, and
    `Unscorable` when the judgement itself failed; and nothing else, whatever the
    completion holds: completions are untrusted text, parsed and never evaluated.

    One that `compares_answer` reads the row's answer as one text. Where a row has
    several, it scores each of them, and the best score counts.

    One that `checks_task` gives its full score to correct completions alone, by other
    columns or through another rule.

    `example_pass` scores the upper bound, or next to it where none but an empty
    completion could; `example_fail` scores less. One that `is_slow` takes longer than a
    completion's way to another process and back. One that `needs_sandbox` runs code,
    and gives no score where no sandbox can be had.
    """

    kind: str
    title: str
    summary: str
    params_model: type[P]
    score: Callable[[Sample, P], float] | None = None
    score_group: Judge[P] | None = None
    batching: Batching[P] | None = None
    compares: Callable[[P], bool] | None = None
    example_pass: Example
    example_fail: Example
    # Further ones, such as forms in which people write an answer.
    also_pass: tuple[Example, ...] = ()
    also_fail: tuple[Example, ...] = ()
    bounds: Callable[[P], tuple[float, float]] = from_zero_to_one
    compares_answer: bool = False
    checks_task: bool = False
    is_slow: bool = False
    needs_sandbox: bool = False
    # Of a rule that asks a model, without asking it. The first raises ValueError where
    # a run could not: a key or the model is not there; the second NotApplicable where
    # the row has not what would be asked about.
    check: Callable[[P], None] | None = None
    check_row: Callable[[Sample, P], object] | None = None

    def __post_init__(self) -> None:
        ways = (self.score, self.score_group, self.batching)
        num_ways = sum(way is not None for way in ways)
        assert num_ways == (2 if self.compares else 1), self.kind
        assert self.score or not self.needs_sandbox, self.kind
        assert self.score or not self.compares_answer, self.kind

    @property
    def decides_correctness(self) -> bool:
        """True where only correct completions get the full score."""
        return self.compares_answer or self.checks_task

    def judges_groups(self, params: P) -> bool:
        """Return whether it looks at all completions of a prompt at once."""
        if self.compares is not None:
            return self.compares(params)
        return self.score_group is not None

    def judge(self, samples: Sequence[Sample], params: P) -> list[Outcome]:
        """Return an outcome for each completion of one prompt, in order."""
        if self.score is not None and not self.judges_groups(params):
            return [self._judge_one(sample, params) for sample in samples]
        if self.batching is not None:
            return self.batching.ask(samples, params)
        assert self.score_group is not None
        return all_outcomes(self.score_group, samples, params)

    def _judge_one(self, sample: Sample, params: P) -> Outcome:
        assert self.score is not None
        if self.compares_answer and isinstance(sample.answer, list):
            return self._judge_each_answer(sample, sample.answer, params)
        try:
            return self.score(sample, params)
        except Unscorable as error:
            return error

    def _judge_each_answer(
        self, sample: Sample, answers: Sequence[str], params: P
    ) -> Outcome:
        """Return the best score by any of the answers; without one, why there is none.

        The rule's time limit is that of all answers together.
        """
        highest = self.bounds(params)[1]
        best: Outcome | None = None
        one_each: Sequence[str | None] = answers or [None]
        seconds: float = getattr(params, "timeout_seconds", math.inf)
        until = time.monotonic() + seconds
        for answer in one_each:
            if best is not None and time.monotonic() > until:
                return Unscorable(
                    f"Comparing with the row's {len(answers)} answers took longer than "
                    f"{seconds:g} s. Raise the time limit, or keep fewer answers."
                )
            outcomes = self._judge_one(replace(sample, answer=answer), params)
            if best is None or _is_better(outcomes, best):
                best = outcomes
            if best == highest:
                break
        assert best is not None
        return best


def _is_better(outcome: Outcome, other: Outcome) -> bool:
    """Any score is better than none, and a failure says more than no answer."""
    if isinstance(outcome, Unscorable):
        is_failure = not isinstance(outcome, NotApplicable)
        return is_failure and isinstance(other, NotApplicable)
    return isinstance(other, Unscorable) or outcome > other


# RE2's time is the pattern's instructions times the text's length: this many take a
# second over 50,000 characters. A class of letters takes 1,200, `.{1,500}` 4,500.
MAX_INSTRUCTIONS = 20_000


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Any:
    """Return a compiled RE2 pattern; ValueError with the remedy when it is not one."""
    options = re2.Options()
    # Left on, RE2 writes each bad pattern to standard error.
    options.log_errors = False
    options.case_sensitive = not ignore_case
    # With RE2's own 8 MiB, a{0,1000}a{0,1000}b falls back to another way to match that
    # takes a second over 30,000 letters; with 16 it is 0.07 s.
    options.max_mem = 16 * 2**20
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = (
            reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        )
        raise ValueError(
            f'The pattern "{pattern}" is not valid: {text}. Patterns use RE2 syntax: '
            "no look-around, no back-references, at most 1000 repeats."
        ) from error
    except UnicodeEncodeError as error:
        raise ValueError(
            "The pattern contains half of a surrogate pair, which is not a character. "
            "Remove it."
        ) from error


def refuse_bad_pattern(pattern: str) -> str:
    """Return a pydantic validator: the pattern as it is, when it compiles."""
    size = compile_pattern(pattern).programsize
    if size > MAX_INSTRUCTIONS:
        raise ValueError(
            f'The pattern "{pattern}" compiles to {size:,} instructions; the limit is '
            f"{MAX_INSTRUCTIONS:,}. Use smaller or fewer repeats."
        )
    return pattern
