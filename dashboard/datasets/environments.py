"""Environments of dataset versions: their settings as a form, tried on a row, saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import chain, repeat
from typing import Any, Self
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError, model_validator

from dashboard.accounts.models import Team, User
from dashboard.datasets.imports import begin_work
from dashboard.datasets.models import DatasetRow, DatasetVersion, ImportJob
from dashboard.datasets.row import Row
from dashboard.datasets.row_filters import are_few
from dashboard.datasets.selections import source_of, start_selection
from dashboard.datasets.services import create_dataset_version
from dashboard.datasets.tokenizer_pool import Busy, refuse_environment, tokenizers
from dashboard.project.database import clean_json, release_connection
from dashboard.project.environment import ROOT
from dashboard.project.errors import UserError
from dashboard.project.schema_forms import (
    BoundField,
    SchemaField,
    SettingsForm,
    explain,
    message_of,
    schema_fields,
    unix_lines,
)
from trainer.config import EnvironmentConfig
from trainer.events import CallRecord, TurnRecord
from trainer.rewards.rule import replace_surrogates

KIND = "environment.kind"
TRY_SECONDS = 8.0  # of an environment; its process replies within 10
MAX_TOKENS = 4_096  # of an episode, until a person changes it
MAX_TURNS = 50  # of the policy, on a page
MAX_TEXT_CHARS = 20_000
# Datasets that Cohort brings: name, rows in trainer/starter, environment.
READY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "guess": (
        "Guess",
        "guess",
        {"kind": "guess", "max_turns": 5, "max_tokens": 2_048},
    ),
    "countdown_calculator": (
        "Countdown with a calculator",
        "countdown",
        {"kind": "countdown_calculator", "max_turns": 4, "max_tokens": 2_048},
    ),
}


@cache
def environment_fields() -> dict[str, SchemaField]:
    return {field.path: field for field in schema_fields(EnvironmentConfig)}


def unused_kinds(field: SchemaField) -> list[str]:
    """List the kinds for which a setting has no effect."""
    return [k for when in field.about.get("no_effect", {}).values() for k in when[KIND]]


class EnvironmentForm(SettingsForm):
    """The settings of an environment."""

    def __init__(self, posted: Mapping[str, str]) -> None:
        super().__init__(environment_fields().values(), posted)

    @classmethod
    def of(cls, version: DatasetVersion) -> EnvironmentForm:
        return cls({}).fill(version.environment or {"max_tokens": MAX_TOKENS})

    @property
    def unused(self) -> list[tuple[BoundField, str]]:
        """The fields, and the kinds for which each has no effect."""
        return [(item, " ".join(unused_kinds(item.field))) for item in self.items]

    def read(self) -> dict[str, Any] | None:
        """Return what differs from the defaults and has an effect; None: see errors."""
        fields = self.fields
        tree = {
            path: field.read_or_text(self.texts[path])
            for path, field in fields.items()
            if self.texts["kind"] not in unused_kinds(field)
        }
        try:
            return read_environment(tree)
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                loc, message = error["loc"], message_of(error)
                path = next(
                    path
                    for path in fields
                    if path in loc[:1] or f"environment.{path}" in message
                )
                text = explain(fields[path], error) if loc else message
                self.errors.setdefault(path, []).append(text)
        return None


def read_environment(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from their defaults, or raise ValidationError."""
    config = _Storable.model_validate(tree)
    return config.model_dump(mode="json", exclude_defaults=True)


class _Storable(EnvironmentConfig):
    """An environment that a database stores, and runs can use."""

    @model_validator(mode="after")
    def _is_storable(self) -> Self:
        tree = self.model_dump(mode="json")
        for name, value in tree.items():
            if clean_json(value) != value:
                raise ValueError(
                    f"Remove NUL and unpaired surrogates from environment.{name}."
                )
        if self.is_there and not self.max_tokens:
            raise ValueError("Set environment.max_tokens, such as 4096.")
        return self


def save_environment(
    version: DatasetVersion, environment: dict[str, Any], *, user: User | None
) -> ImportJob:
    """Make the dataset's next version: the same rows with this environment.

    Sent twice, it is one version, as the newest has these rows and this environment.
    UserError if it is not allowed.
    """
    if why := refuse_environment(environment, [version]):
        raise UserError("datasets.taskset_refused", why)
    how = f"environment {environment.get('kind', 'none')}"
    source = source_of(version, kind="view", query="", how=how)
    job, _ = start_selection(
        parent=version,
        source=source | {"environment": environment},
        name="",
        dataset=version.dataset,
        user=user,
        key=uuid4(),
    )
    begin_work(job, at_once=are_few(version))
    return job


def add_ready(team: Team, key: str, user: User) -> DatasetVersion:
    """Add one of READY as a dataset; its newest version, if the team has it."""
    name, folder, environment = READY[key]
    source = {"kind": "environment", "filename": f"{folder}/rows.jsonl"}
    own = DatasetVersion.objects.filter(
        dataset__team=team, dataset__trashed_at=None, source__contains=source
    )
    if version := own.order_by("-pk").first():
        return version.dataset.versions.latest("number")
    with (ROOT / "trainer" / "starter" / folder / "rows.jsonl").open() as file:
        rows = [_ready_row(key, json.loads(line)) for line in file]
    is_taken = team.datasets.filter(name=name, trashed_at=None).exists()
    return create_dataset_version(
        team=team,
        name=f"{name} of Cohort" if is_taken else name,
        rows=rows,
        mapping={
            "prompt": "prompt",
            "answer": "answer",
            "columns": sorted(rows[0].columns),
        },
        source=source,
        user=user,
        environment=environment,
    )


def taskset_environment(taskset: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of a taskset's rows.

    UserError if the options are too long, or not allowed.
    """
    try:
        environment = read_environment(
            {
                "kind": "verifiers",
                "taskset": taskset,
                "options": options,
                "max_tokens": MAX_TOKENS,
            }
        )
    except ValidationError as invalid:
        why = message_of(invalid.errors()[0])
        raise UserError("datasets.invalid_options", f"{why}.") from None
    if why := refuse_environment(environment):
        raise UserError("datasets.taskset_refused", why)
    return environment


def _ready_row(key: str, row: dict[str, Any]) -> Row:
    if key == "guess":
        return Row(prompt=row["prompt"], answer=row["answer"])
    columns = {name: row["columns"][name] for name in ("numbers", "target")}
    numbers = ", ".join(map(str, columns["numbers"]))
    prompt = (
        f"Make {columns['target']} of the numbers {numbers} with + - * / and "
        "parentheses, each number once. Check it with the calculator, then write the "
        "expression between <answer> and </answer>."
    )
    return Row(prompt=prompt, answer=row["answer"], columns=columns)


# Tries: a person says what the policy would, and the environment replies.


class TriedTurn(TurnRecord):
    """A turn with its text, and what the policy calls in it."""

    start: int = 0
    end: int = 0
    text: str = ""
    asks: tuple[CallRecord, ...] = ()


_TURNS = TypeAdapter(list[TriedTurn])


class Try:
    """A conversation with an environment, which the page carries."""

    def __init__(self, posted: Mapping[str, Any]) -> None:
        self.text = unix_lines(posted.get("says", ""))[:MAX_TEXT_CHARS]
        self.tool = posted.get("tool", "")[:100]
        self.arguments = posted.get("arguments", "")[:MAX_TEXT_CHARS]
        # As the process gives it: a problem, or tools, metrics and so on; or that it
        # is pending, and to be asked again.
        self.reply: dict[str, Any] = {}
        self.turns: list[TriedTurn] = []
        with suppress(ValidationError):  # not of the page
            self.turns = _TURNS.validate_json(posted.get("played") or "[]")

    @property
    def played(self) -> str:
        return _TURNS.dump_json(self.turns).decode()

    def play(self, row: DatasetRow, environment: dict[str, Any], *, team: Team) -> None:
        """Say what is typed, and have the environment answer.

        If nothing is, and no turn is there, it only opens the row.
        """
        before, arguments = self.turns, self.arguments or "{}"
        problem = ""
        if self.tool and isinstance(_arguments(arguments), str):
            problem = (
                f"The arguments {arguments[:60]!r} are no JSON object, such as "
                '{"expression": "1 + 2"}.'
            )
        if sum(turn.author == "policy" for turn in before) >= MAX_TURNS:
            problem = f"A try has at most {MAX_TURNS} turns."
        problem = problem or refuse_environment(environment, [row.version])
        if problem:
            self.reply = {"problem": problem}
            return
        if self.text or self.tool or before:
            call = CallRecord(name=self.tool, arguments=arguments)
            text = self.text or (f"{self.tool}({arguments})" if self.tool else "")
            asks = (call,) if self.tool else ()
            self.turns = [*before, TriedTurn(author="policy", text=text, asks=asks)]
        said = [turn for turn in self.turns if turn.author == "policy"]
        question = {
            "index": row.position,
            "row": {
                "prompt": row.prompt_value,
                "answer": row.answer_value,
                "columns": row.columns,
            },
            "environment": environment,
            "said": [
                {
                    "text": turn.text,
                    "calls": [
                        {"name": ask.name, "arguments": _arguments(ask.arguments)}
                        for ask in turn.asks
                    ],
                }
                for turn in said
            ],
            "seconds": TRY_SECONDS,
            "owner": f"team {team.pk}",
        }
        release_connection()
        try:
            self.reply = tokenizers.ask(team_id=team.pk, model="", question=question)
        except Busy:
            self.reply = {"is_pending": True}
        if "opening" not in self.reply:
            self.turns = before  # what is typed may be said again
            return
        if len(said) < 2:
            opening = _turns_of({"messages": self.reply["opening"]})
            self.turns = opening + self.turns[len(self.turns) - len(said) :]
        if said:
            reward = {"reward": self.reply["reward"]}
            self.turns[-1] = self.turns[-1].model_copy(update=reward)
            self.turns += _turns_of(self.reply)
            self.text = self.arguments = ""


def _arguments(text: str) -> dict[str, Any] | str:
    """Return a JSON object, or the text that is none."""
    try:
        plain = json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    value = json.loads(replace_surrogates(plain))
    return value if isinstance(value, dict) else text


def _turns_of(reply: Mapping[str, Any]) -> list[TriedTurn]:
    """Return a turn for each message; its call, if it has one, stands for its text."""
    return [
        TriedTurn(
            author="tool" if message["role"] == "tool" else "environment",
            name=message.get("name", ""),
            text="" if call else message["content"],
            seconds=call["seconds"] if call else reply.get("seconds"),
            calls=[
                CallRecord(
                    name=call["name"],
                    arguments=json.dumps(call["arguments"], ensure_ascii=False),
                    result=call["result"],
                    error=call["error"],
                )
            ]
            if call
            else [],
        )
        for message, call in zip(
            reply["messages"],
            chain(reply.get("calls", ()), repeat(None)),
            strict=False,
        )
    ]
