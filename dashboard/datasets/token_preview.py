"""Prompts as a model's tokens: previewed and counted by the engine's tokenizers."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from django.conf import settings
from pydantic import ValidationError

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.tokenizer_pool import Busy, refuse_environment, tokenizers
from dashboard.project.database import release_connection
from dashboard.project.environment import ROOT
from trainer.config import HUB_ID, DataConfig

# Models in COHORT_DATA.
DATA_FOLDER = re.compile(
    r"starter/[^/]+/model|models/(?P<team>\d{1,18})/(?P<model>\d{1,18})/model"
    r"|runs/(?P<run>\d{1,18})/(checkpoints|kept)/[^/]+/model"
)
# Of DataConfig: what a prompt is made of besides its row.
SETTINGS = (
    "system_prompt",
    "prompt_template",
    "completion_prefix",
    "chat_template",
    "chat_template_kwargs",
)
NUM_ROWS = 5
MAX_ROW_CHARS = 200_000
MAX_SETTING_CHARS = 20_000
MAX_SECONDS = 600  # of counting
SHOWN_CHARS = 400  # of an error


def list_models(team: Team) -> list[str]:
    """Return the newest run's model, the starter models, and those of other runs."""
    starters = sorted((Path(settings.COHORT_DATA) / "starter").glob("*/model"))
    paths = [str(path) for path in starters if (path / "tokenizer.json").is_file()]
    # Runs are of a higher floor, and named by string only.
    runs = (
        team.runs.filter(source={})
        .order_by("-pk")
        .values_list("config__model__path", flat=True)
    )
    used = list(runs[:200])
    return list(dict.fromkeys([*used[:1], *paths, *used[1:]]))[:20]


def refuse_model(team: Team, model: str) -> str:
    """Return why its tokenizer may not be loaded; "" if it may."""
    if not model.startswith("/"):
        # A relative path would depend on the working directory of the engine.
        return "" if HUB_ID.fullmatch(model) else _no_model(model)
    if (why := refuse_folder(model)) or not within_data(model):
        return why
    match = DATA_FOLDER.fullmatch(within_data(model))
    assert match
    is_own = match["team"] in (None, str(team.pk))
    if match["run"]:
        is_own = team.runs.filter(pk=match["run"]).kept().exists()
    return "" if is_own else _no_model(model)


def _no_model(model: str) -> str:
    return (
        f"This team has no model {model[:200]!r}. Enter an absolute path, or a Hugging "
        "Face model ID such as Qwen/Qwen2.5-0.5B-Instruct."
    )


def refuse_folder(path: str) -> str:
    """Return why a model in this folder may not be read; "" if it may.

    Callers check that a run or model of the data folder belongs to the team.
    """
    place, data = _resolved(path), Path(settings.COHORT_DATA).resolve()
    is_elsewhere = not (place.is_relative_to(data) or data.is_relative_to(place))
    is_in_folder = any(map(place.is_relative_to, settings.MODEL_FOLDERS))
    if (is_elsewhere and is_in_folder) or DATA_FOLDER.fullmatch(within_data(path)):
        return ""
    folders = ", ".join(map(str, settings.MODEL_FOLDERS))
    return (
        f"The model folder {path[:200]!r} is not allowed. Choose a model from the list"
        f"{f' or a folder in {folders}' if folders else ''}, or have an operator add "
        "yours to COHORT_MODEL_FOLDERS."
    )


def _resolved(path: str) -> Path:
    """Return the path without links and ..; / if it is invalid."""
    try:
        return Path(path).resolve()
    except (ValueError, OSError, RuntimeError):
        return Path("/")


def within_data(path: str) -> str:
    """Return the path relative to COHORT_DATA, resolved; "" outside of it."""
    if not path.startswith("/"):
        return ""
    try:
        data = Path(settings.COHORT_DATA).resolve()
        return str(_resolved(path).relative_to(data))
    except ValueError:
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """The text of consecutive tokens, or of one special token."""

    text: str
    is_special: bool = False
    num_left_out: int = 0  # tokens that this piece replaces


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """Pieces, or the reason why there are none."""

    row: int = 0
    num_rows: int = 0
    problem: str = ""
    pending: str = ""  # why it is not there yet
    pieces: tuple[Piece, ...] = ()
    num_tokens: int = 0
    num_unknown: int = 0
    limit: int = 0
    prefix: str = ""
    # Of an environment: why the model can have no episodes of it, and what to know.
    refusals: tuple[str, ...] = ()
    drops_thinking: bool = False

    @property
    def row_numbers(self) -> range:
        return range(self.num_rows)

    @property
    def is_too_long(self) -> bool:
        return self.num_tokens > self.limit


def read_row(form: Mapping[str, Any]) -> int:
    text = form.get("row", "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def preview_version(
    team: Team,
    version: DatasetVersion,
    *,
    model: str,
    row: int,
    data: dict[str, Any],
    episodes: Mapping[str, Any] | None = None,
) -> Preview:
    """Render a row of the version; pending after a second without a tokenizer.

    The page offers the first rows. `data` are settings of DataConfig; `episodes` are
    `environment` and `seed`, for prompts of episodes.
    """
    num_rows = min(NUM_ROWS, version.num_rows)
    row = max(0, min(row, version.num_rows - 1))
    stored = version.rows.filter(position=row).first()
    if stored is None:
        return Preview(problem=f"Row {row} does not exist.")
    if why := refuse_environment((episodes or {}).get("environment", {}), [version]):
        return Preview(problem=why, row=row, num_rows=num_rows)
    return preview_row(
        team,
        stored.as_row(),
        model=model,
        row=row,
        num_rows=num_rows,
        data=data,
        episodes=episodes,
    )


def preview_row(
    team: Team,
    of: Row,
    *,
    model: str,
    row: int,
    num_rows: int,
    data: dict[str, Any],
    episodes: Mapping[str, Any] | None = None,
) -> Preview:
    at: dict[str, Any] = {"row": row, "num_rows": num_rows}
    if refusal := refuse_model(team, model) or _refuse_size(of, data):
        return Preview(problem=refusal, **at)
    try:
        DataConfig.model_validate({**data, "rows": "-"})
    except ValidationError as error:
        first_error = error.errors()[0]
        name = ".".join(map(str, first_error["loc"]))
        value = str(first_error["input"])[:80]
        return Preview(
            problem=f"data.{name}: {first_error['msg']}; got {value!r}.", **at
        )
    question = {
        "index": row,
        "row": {"prompt": of.prompt, "answer": of.answer, "columns": of.columns},
        "data": data,
        **(episodes or {}),
    }
    release_connection()
    try:
        reply = tokenizers.ask(team_id=team.pk, model=model, question=question)
    except Busy as busy:
        return Preview(pending=str(busy), **at)
    at |= {
        "refusals": tuple(reply.get("refusals", ())),
        "drops_thinking": reply.get("drops_thinking", False),
    }
    if problem := reply.get("problem"):
        return Preview(problem=problem, **at)
    first = [Piece(text=text, is_special=yes) for text, yes in reply["pieces"]]
    last = [Piece(text=text, is_special=yes) for text, yes in reply["last_pieces"]]
    left_out = reply["num_left_out"]
    gap = [Piece(text="", num_left_out=left_out)] if left_out else []
    return Preview(
        pieces=(*first, *gap, *last),
        num_tokens=reply["num_tokens"],
        num_unknown=reply["num_unknown"],
        # Settings that were refused have no answer.
        limit=int(data["max_prompt_tokens"]),
        prefix=data["completion_prefix"],
        **at,
    )


def _refuse_size(row: Row, data: dict[str, Any]) -> str:
    num_chars = len(row.canonical())
    if num_chars > MAX_ROW_CHARS:
        return (
            f"This row has {num_chars:,} characters; the preview shows at most "
            f"{MAX_ROW_CHARS:,}. Choose another row."
        )
    for name in SETTINGS:
        length = len(str(data[name] or ""))
        if length > MAX_SETTING_CHARS:
            return (
                f"data.{name} has {length:,} characters; the preview allows at most "
                f"{MAX_SETTING_CHARS:,}. Shorten it."
            )
    return ""


class Uncountable(Exception):
    """The tokenizer failed; the message says why."""


def count_tokens(model: str, rows: Iterable[Row]) -> Counter[int]:
    """Count rows by their length, as a run with default settings renders them."""
    # Into files: a full pipe would block the child.
    with (
        TemporaryFile("w+", encoding="utf-8") as counts,
        TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
    ):
        code = _run(model, rows, counts, errors)
        counts.seek(0)
        errors.seek(0)
        if code != 0:
            raise Uncountable(_explain(model, code, errors.read()))
        return Counter(int(line) for line in counts)


def _run(model: str, rows: Iterable[Row], counts: IO[str], errors: IO[str]) -> int:
    command = [sys.executable, "-m", "trainer", "tokens", "--model", model]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=counts,
        stderr=errors,
        encoding="utf-8",
    ) as child:
        assert child.stdin
        # A tokenizer that waits for an unreachable Hub must not block the worker.
        timer = threading.Timer(MAX_SECONDS, child.kill)
        timer.start()
        try:
            # After an early exit, the exit code and the errors say why.
            with suppress(BrokenPipeError):
                for row in rows:
                    child.stdin.write(row.canonical() + "\n")
                child.stdin.close()
            return child.wait()
        finally:
            timer.cancel()
            child.kill()
            with suppress(BrokenPipeError):
                child.stdin.close()


def _explain(model: str, code: int, errors: str) -> str:
    if "ModuleNotFoundError" in errors:
        return (
            "This worker has no training engine to count tokens with. Start the "
            "default worker where the engine is installed."
        )
    if -code in (signal.SIGALRM, signal.SIGPROF):  # timers of its own
        return (
            f"The tokenizer of {model} timed out while loading or on one prompt. Check "
            "its files and its chat template, or choose another model."
        )
    if code < 0:
        return (
            f"The tokenizer of {model} was stopped after {MAX_SECONDS // 60} minutes, "
            "or ran out of memory. Try a model whose files are on this machine."
        )
    last = errors.strip().splitlines()[-1:] or [f"exit code {code}"]
    return f"The tokenizer of {model} failed: {last[0][:SHOWN_CHARS]}"
