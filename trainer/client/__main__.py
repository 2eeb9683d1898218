"""`cohort`: the API from a terminal, and what reporters left to be sent."""

from __future__ import annotations

import io
import logging
import os
import sys
from argparse import (
    SUPPRESS,
    ArgumentParser,
    ArgumentTypeError,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer.client import commands, verl
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
ABOUT = "Work with a Cohort server: its datasets, rewards, runs and completions."
EPILOG = f"""{TABLE}
The server and the token come from COHORT_URL and COHORT_TOKEN, or from `cohort login`.
Results go to standard output, with --json as one JSON object a line. Progress and
errors go to standard error."""
RUN = "the run's number, or the address of its page"


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="cohort",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.set_defaults(json=False)
    _printed(parser)
    groups = parser.add_subparsers(required=True, metavar="COMMAND")
    login = _add(groups, "login", commands.log_in, "store a token on this machine")
    login.add_argument(
        "url", help="the server's address, such as https://cohort.example.org"
    )
    _add_datasets(_group(groups, "datasets", "push and list datasets"))
    recipes = _group(groups, "recipes", "list reward recipes")
    _add_list_of_named(recipes, "recipes")
    presets = _group(groups, "presets", "list presets to launch from")
    _add(presets, "list", commands.list_presets, "list published and team presets")
    _add_runs(_group(groups, "runs", "launch, list, watch and export runs"))
    _add_groups(_group(groups, "groups", "show groups of completions"))
    sync = _add(groups, "sync", commands.sync, "send what a reporter left unsent")
    sync.add_argument("folder", type=Path, help="the reporter's folder")
    follow = groups.add_parser(
        "verl", help=verl.ABOUT, description=_sentence(verl.ABOUT)
    )
    verl.add_arguments(follow)
    follow.set_defaults(do=verl.run)
    return parser


def _group(groups: Any, name: str, about: str) -> Any:
    parser = groups.add_parser(name, help=about, description=_sentence(about))
    _printed(parser)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def _add(group: Any, name: str, do: Do, about: str) -> Any:
    parser = group.add_parser(name, help=about, description=_sentence(about))
    _printed(parser)
    parser.set_defaults(do=do)
    return parser


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."


def _printed(parser: ArgumentParser) -> None:
    """At each level: one that was given before the command is not taken back."""
    parser.add_argument(
        "--json",
        action="store_true",
        default=SUPPRESS,
        help="print one JSON object a line",
    )


def _limited(parser: Any) -> None:
    parser.add_argument(
        "--limit",
        type=_count,
        default=50,
        metavar="N",
        help="list at most N, 0: all (default: %(default)s)",
    )


def _add_list_of_named(group: Any, kind: str) -> None:
    parser = _add(group, "list", commands.list_named, f"list {kind}, newest first")
    parser.set_defaults(kind=kind)
    _limited(parser)


def _add_datasets(group: Any) -> None:
    _add_list_of_named(group, "datasets")
    push = _add(group, "push", commands.push, "upload a file as a dataset version")
    push.add_argument("file", type=Path, help="JSONL, JSON, CSV, TSV or Parquet")
    target = push.add_mutually_exclusive_group()
    target.add_argument(
        "--name", help="name of the new dataset (default: the file's name)"
    )
    target.add_argument(
        "--to",
        metavar="DATASET",
        help="add the rows as the next version of this dataset (name or id)",
    )
    push.add_argument(
        "--prompt", metavar="COLUMN", help="the prompt's column (default: by its name)"
    )
    push.add_argument(
        "--answer",
        metavar="COLUMN",
        help="the answer's column, '' for none (default: by its name)",
    )
    push.add_argument(
        "--column",
        dest="columns",
        metavar="COLUMN",
        action="append",
        help="keep this extra column; may be repeated",
    )
    push.add_argument(
        "--leave-out",
        type=_count,
        default=0,
        metavar="N",
        help="import the other rows if exactly N rows have errors",
    )
    _keyed(push)


def _add_runs(group: Any) -> None:
    found = _add(group, "list", commands.list_runs, "list runs, newest first")
    found.add_argument(
        "-q",
        "--query",
        default="",
        help="list only runs that match, such as 'state = running and reward > 0.5'",
    )
    found.add_argument(
        "--sort",
        default="-num",
        metavar="KEY",
        help="sort by this column, --sort=-KEY in descending order",
    )
    _limited(found)
    _run(_add(group, "show", commands.show_run, "show a run's state and step"))
    _add_launch(group)
    watch = _add(group, "watch", commands.watch, "print each step until the run ends")
    _run(watch)
    watch.add_argument(
        "--from-step",
        type=_count,
        metavar="N",
        help="begin at this step (default: the first, on a terminal the last one done)",
    )
    watch.add_argument(
        "--every",
        type=_seconds,
        default=LOOK_SECONDS,
        metavar="SECONDS",
        help="time between two requests (default: %(default)s)",
    )
    _add_export(group)
    for verb, about in (
        ("stop", "finish the current step, save a checkpoint and end the run"),
        ("pause", "finish the current step, save a checkpoint and free the worker"),
        ("resume", "queue a paused run again"),
        ("cancel", "end a run at once, without a checkpoint"),
    ):
        parser = _add(group, verb, commands.ask, about)
        parser.set_defaults(verb=verb)
        _run(parser)
    extend = _add(
        group, "extend", commands.extend, "continue an ended run, or add steps to a run"
    )
    _run(extend)
    extend.add_argument(
        "last_step",
        type=_count,
        nargs="?",
        help="the new last step (default: as before, for a stopped run)",
    )


def _add_launch(group: Any) -> None:
    launch = _add(group, "launch", commands.launch, "queue a run")
    start = launch.add_mutually_exclusive_group()
    start.add_argument(
        "--preset",
        dest="start",
        default="",
        help="take the settings of a preset; `cohort presets list` lists them",
    )
    start.add_argument(
        "--clone",
        dest="start",
        type=lambda text: f"run-{commands.run_number(text)}",
        metavar="RUN",
        help="take the settings of this run (number or address)",
    )
    start.add_argument(
        "--fork",
        dest="start",
        type="fork-{}".format,
        metavar="CHECKPOINT",
        help="continue from a checkpoint, such as 7-step-000050-attempt-1",
    )
    launch.add_argument(
        "--scaled",
        action="store_true",
        help="take the preset's settings scaled down to a small machine",
    )
    launch.add_argument("--name", help="the run's name (default: a generated one)")
    launch.add_argument(
        "--model",
        help="a folder, or a name on the hub (default: the run's, or a starter model)",
    )
    launch.add_argument(
        "--dataset",
        help="NAME, NAME@VERSION or a version's id (default: the run's, or the only "
        "one)",
    )
    launch.add_argument(
        "--recipe",
        help="the reward: NAME, NAME@VERSION or a version's id (default: the run's, "
        "or the only one)",
    )
    launch.add_argument(
        "--held-out",
        type=commands.held_out,
        action="append",
        metavar="[NAME=]DATASET",
        help="evaluate on this dataset too; may be repeated",
    )
    launch.add_argument(
        "--set",
        type=commands.setting,
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change a setting, such as optim.learning_rate=1e-6; may be repeated",
    )
    launch.add_argument(
        "--toml",
        type=Path,
        metavar="FILE",
        help="take the settings of a TOML file, - for standard input",
    )
    launch.add_argument(
        "--yes", action="store_true", help="launch even if there are warnings"
    )
    launch.add_argument(
        "--watch", action="store_true", help="print each step until the run ends"
    )
    _keyed(launch)


def _add_export(group: Any) -> None:
    export = _add(group, "export", commands.export, "save a run as a file")
    _run(export)
    export.add_argument(
        "file",
        type=Path,
        help="the file to write, - for standard output; its ending sets the format",
    )
    export.add_argument(
        "--what",
        default="",
        help="metrics, completions or tensorboard (default: by the file's name, else "
        "metrics), or a whole name such as metrics.jsonl",
    )
    export.add_argument(
        "--first-step", type=_count, metavar="N", help="leave out earlier steps"
    )
    export.add_argument(
        "--last-step", type=_count, metavar="N", help="leave out later steps"
    )
    export.add_argument("--force", action="store_true", help="overwrite the file")


def _add_groups(group: Any) -> None:
    show = _add(
        group, "show", commands.show_groups, "show the groups of a step, or one group"
    )
    _run(show)
    show.add_argument("step", type=_count, help="the step's number")
    show.add_argument(
        "group", type=_count, nargs="?", help="the prompt's number, to show one group"
    )


def _run(parser: Any) -> None:
    parser.add_argument("run", type=commands.run_number, help=RUN)


def _keyed(parser: Any) -> None:
    parser.add_argument(
        "--key",
        default="",
        help="repeated with the same key within a day, the command acts once",
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
    parsed = make_parser().parse_args(given)
    try:
        parsed.do(parsed)
    except Ended as end:
        return end.code
    except Refused as error:
        _tell(error)
        return REFUSED
    except Unreachable as error:
        remark(str(error))
        remark("Is the server running, and is its address right?")
        return UNREACHABLE
    except UnicodeEncodeError as error:
        remark(f"The command must be UTF-8; got {_start(error.object)!r}.")
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
    """What the server said, and the fault of each field or row."""
    remark(str(error))
    if error.status == 401:
        remark("Store another token with `cohort login URL`.")
    text = f"{error} {error.problem.get('detail', '')}"
    for each in list(error.problem.get("errors", ()))[:MAX_TOLD]:
        message = str(each.get("message", ""))
        if message and message not in text:
            remark(f"  {each.get('field', '')}: {message}")


if __name__ == "__main__":
    raise SystemExit(main())
