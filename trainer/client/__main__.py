"""`cohort`: the API from a terminal, and what reporters left to be sent."""

from __future__ import annotations

import io
import logging
import os
import sys
from argparse import (
    ArgumentParser,
    ArgumentTypeError,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer.client import commands as asking
from trainer.client import commands as runs
from trainer.client import verl
from trainer.client.api.files import FILES
from trainer.client.api.records import ended
from trainer.client.api.run import LOOK_SECONDS
from trainer.client.http import Refused, Unreachable
from trainer.client.output import (
    BROKEN_PIPE,
    DONE,
    INTERRUPTED,
    MISUSED,
    REFUSED,
    TABLE,
    UNREACHABLE,
    Ended,
    Remarks,
    remark,
)

Do = Callable[[Namespace], None]
ABOUT = "Ask a Cohort server: datasets, runs, what they measured and sampled."
EPILOG = f"""{TABLE}
The server and the token are those of `cohort login`, or of COHORT_URL and COHORT_TOKEN.
Results go to standard output, one JSON object a line with --json; all else goes to
standard error."""
RUN = "its number, or the address of its page"


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="cohort",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    login = _add(commands, "login", asking.log_in, "keep a token for this machine")
    login.add_argument("url", help="of the server: https://cohort.example.org")
    _add_datasets(_group(commands, "datasets", "push and list datasets"))
    recipes = _group(commands, "recipes", "list reward recipes")
    _limited(_add(recipes, "list", asking.list_recipes, "the newest first"))
    presets = _group(commands, "presets", "list what a launch may begin with")
    _add(presets, "list", asking.list_presets, "published systems, the team's own")
    _add_runs(_group(commands, "runs", "launch, list, watch and export runs"))
    _add_groups(_group(commands, "groups", "look at groups of completions"))
    sync = _add(commands, "sync", asking.sync, "send what a reporter kept on the disk")
    sync.add_argument("folder", type=Path)
    commands.add_parser("verl", help="follow verl's rollout dumps", add_help=False)
    return parser


def _group(commands: Any, name: str, about: str) -> Any:
    parser = commands.add_parser(name, help=about, description=about)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def _add(commands: Any, name: str, do: Do, about: str) -> Any:
    parser = commands.add_parser(name, help=about, description=about)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(do=do)
    return parser


def _limited(parser: Any) -> None:
    parser.add_argument(
        "--limit", type=_count, default=50, help="how many, 0: all (%(default)s)"
    )


def _add_datasets(commands: Any) -> None:
    _limited(_add(commands, "list", asking.list_datasets, "the newest first"))
    push = _add(commands, "push", asking.push, "make a dataset version of a file")
    push.add_argument("file", type=Path, help="JSONL, JSON, CSV, TSV or Parquet")
    target = push.add_mutually_exclusive_group()
    target.add_argument("--name", help="of a new dataset; else the file's")
    target.add_argument("--to", metavar="DATASET", help="its next version: name or id")
    push.add_argument("--prompt", metavar="COLUMN", help="else guessed by its name")
    push.add_argument("--answer", metavar="COLUMN", help="else guessed; '': none")
    push.add_argument(
        "--column",
        dest="columns",
        metavar="COLUMN",
        action="append",
        help="extra column to keep; may be repeated",
    )
    push.add_argument(
        "--leave-out",
        type=_count,
        default=0,
        metavar="N",
        help="how many refused rows you have seen and do without",
    )
    push.add_argument("--no-wait", action="store_true", help="until it is imported")
    _keyed(push)


def _add_runs(commands: Any) -> None:
    found = _add(commands, "list", runs.list_runs, "the newest first")
    found.add_argument(
        "-q", "--query", default="", help="'state = running and reward > 0.5'"
    )
    found.add_argument(
        "--sort",
        default="-num",
        metavar="KEY",
        help="a column's; --sort=-KEY: from the top",
    )
    _limited(found)
    _run(_add(commands, "show", runs.show_run, "state, step and settings of a run"))
    _add_launch(commands)
    watch = _add(commands, "watch", runs.watch, "each step, until the run ends")
    _run(watch)
    watch.add_argument(
        "--from-step",
        type=_count,
        metavar="N",
        help="else the first, on a terminal the last that is done",
    )
    watch.add_argument(
        "--every",
        type=_seconds,
        default=LOOK_SECONDS,
        metavar="SECONDS",
        help="how often it is looked at (%(default)s)",
    )
    _add_export(commands)
    for verb, about in (
        ("stop", "after the step it is at, with a checkpoint"),
        ("pause", "after the step it is at; its worker is free"),
        ("resume", "queue a paused run again"),
        ("cancel", "end it now, without a checkpoint"),
    ):
        parser = _add(commands, verb, runs.ask, about)
        parser.set_defaults(verb=verb)
        _run(parser)


def _add_launch(commands: Any) -> None:
    launch = _add(commands, "launch", runs.launch, "queue a run")
    start = launch.add_mutually_exclusive_group()
    start.add_argument("--preset", default="", help="see `cohort presets list`")
    start.add_argument("--clone", type=runs.run_number, metavar="RUN", help=RUN)
    start.add_argument(
        "--fork", default="", metavar="CHECKPOINT", help="7-step-000050-epoch-1"
    )
    launch.add_argument(
        "--scaled", action="store_true", help="the preset made smaller, for one machine"
    )
    launch.add_argument("--name", help="else one is made up")
    launch.add_argument("--model", help="a path, or a name of the hub")
    launch.add_argument("--dataset", help="name, name@VERSION, or a version's id")
    launch.add_argument("--recipe", help="name, name@VERSION, or a version's id")
    launch.add_argument(
        "--held-out",
        type=runs.held_out,
        action="append",
        metavar="[NAME=]DATASET",
        help="an evaluation set; may be repeated",
    )
    launch.add_argument(
        "--set",
        type=runs.setting,
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="optim.learning_rate=1e-6; may be repeated",
    )
    launch.add_argument("--toml", type=Path, metavar="FILE", help="settings; -: stdin")
    launch.add_argument("--yes", action="store_true", help="though there are warnings")
    launch.add_argument("--watch", action="store_true", help="it until it ends")
    _keyed(launch)


def _add_export(commands: Any) -> None:
    export = _add(commands, "export", runs.export, "a run as a file")
    _run(export)
    export.add_argument(
        "file",
        type=Path,
        nargs="?",
        help="to write, -: standard output; its end says the format",
    )
    export.add_argument(
        "--what",
        default="",
        metavar="WHAT",
        help=f"metrics, completions or tensorboard; or {', '.join(FILES)}",
    )
    export.add_argument("--first-step", type=_count, metavar="N")
    export.add_argument("--last-step", type=_count, metavar="N")
    export.add_argument("--force", action="store_true", help="overwrite the file")


def _add_groups(commands: Any) -> None:
    show = _add(commands, "show", runs.show_groups, "a step's groups, or one of them")
    _run(show)
    show.add_argument("step", type=_count)
    show.add_argument("group", type=_count, nargs="?", help="its prompt's number")


def _run(parser: Any) -> None:
    parser.add_argument("run", type=runs.run_number, help=RUN)


def _keyed(parser: Any) -> None:
    parser.add_argument(
        "--key", default="", help="given again within a day, it is done once"
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise ArgumentTypeError(f"a whole number from 0 is needed; got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3_600:
        raise ArgumentTypeError(f"seconds from 0.1 to 3600 are needed; got {text!r}")
    return seconds


MAX_TOLD = 20  # fields or rows that are wrong
MAX_SHOWN = 200  # characters of what was given


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(handlers=[Remarks()])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # one that takes ASCII alone
    if given[:1] == ["verl"]:
        return verl.main(given[1:])
    parsed = make_parser().parse_args(given)
    try:
        parsed.do(parsed)
    except Ended as end:
        return end.code
    except Refused as error:
        _tell(error)
        return REFUSED
    except Unreachable as error:
        remark(f"{ended(str(error))} Is it running, and is its address right?")
        return UNREACHABLE
    except UnicodeEncodeError as error:
        remark(f"What is asked for must be UTF-8; got {_start(error.object)!r}.")
        return MISUSED
    except ValueError as error:
        remark(str(error))
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read what is printed has left; nor is anything to be said at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        remark(f"{_start(str(error.filename or 'A file'))}: {error.strerror or error}.")
        return MISUSED
    return DONE


def _start(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _tell(error: Refused) -> None:
    """What the server says, and of each field or row what is wrong with it."""
    remark(str(error))
    if error.status == 401:
        remark("`cohort login URL` keeps another token.")
    for each in list(error.problem.get("errors", ()))[:MAX_TOLD]:
        message = str(each.get("message", ""))
        if message and message not in str(error):
            remark(f"  {each.get('field', '')}: {message}")


if __name__ == "__main__":
    raise SystemExit(main())
