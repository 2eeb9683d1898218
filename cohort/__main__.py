"""The `cohort` command: the API in a terminal, and reporters' unsent events."""

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

from cohort import commands, completion, follow, hub, mcp, trackers
from cohort.api.run import FILTERS, POLL_SECONDS
from cohort.http import Refused, Unreachable
from cohort.output import (
    BROKEN_PIPE,
    DONE,
    EXIT_CODES,
    INTERRUPTED,
    MISUSED,
    REFUSED,
    UNREACHABLE,
    CommandEnded,
    StderrHandler,
    print_error,
)

Do = Callable[[Namespace], None]
ABOUT = "Work with a Cohort server: its datasets, rewards, runs and completions."
EPILOG = f"""{EXIT_CODES}
The server and the token come from COHORT_URL and COHORT_TOKEN, or from `cohort login`.
Results go to standard output, with --json as one JSON object a line. Progress and
errors go to standard error."""
RUN = "run number, or the URL of the run's page"


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="cohort",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.set_defaults(json=False)
    _add_json_option(parser)
    groups = parser.add_subparsers(required=True, metavar="COMMAND")
    login = _add(groups, "login", commands.log_in, "save the server URL and a token")
    login.add_argument("url", help="server URL, such as https://cohort.example.org")
    _add_datasets(_group(groups, "datasets", "push and list datasets"))
    _add_list_of_named(_group(groups, "recipes", "list rewards"), "recipes")
    presets = _group(groups, "presets", "list presets to launch from")
    _add(presets, "list", commands.list_presets, "list published and team presets")
    _add_checkpoints(_group(groups, "checkpoints", "list and download checkpoints"))
    _add_runs(_group(groups, "runs", "launch, list, watch and export runs"))
    show = _add(
        _group(groups, "groups", "show groups of completions"),
        "show",
        commands.show_groups,
        "show the groups of a step, or one group",
    )
    _run(show)
    show.add_argument("step", type=_count, help="step number")
    show.add_argument(
        "group", type=_count, nargs="?", help="prompt index, to show one group"
    )
    found = _add(
        groups, "completions", commands.list_completions, "search a run's completions"
    )
    _run(found)
    for name, about in FILTERS.items():
        found.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=about)
    _add_limit_option(found)
    _add_push(
        _add(groups, "push", hub.push, "push a run's data to the Hugging Face hub")
    )
    _add_trackers(groups)
    sync = _add(
        groups, "sync", commands.sync, "send the events that a reporter could not send"
    )
    sync.add_argument("folder", type=Path, help="the reporter's folder")
    _add(groups, "mcp", mcp.serve, "serve an assistant's tools over standard input")
    _add(groups, "skill", mcp.print_skill, "print a skill file for an assistant")
    script = _add(
        groups,
        "completion",
        completion.print_script,
        "print a script that completes this command in a shell",
    )
    script.add_argument("shell", choices=list(completion.SCRIPTS))
    complete = groups.add_parser("complete")  # of these scripts, so without help
    complete.add_argument("words", nargs="*")
    complete.set_defaults(do=completion.complete, parser=parser)
    for command, form in (("follow", ""), ("verl", "verl")):  # its former name
        following = groups.add_parser(
            command, help=follow.ABOUT, description=_sentence(follow.ABOUT)
        )
        follow.add_arguments(following)
        following.set_defaults(do=follow.run, format=form)
    return parser


def _group(groups: Any, name: str, about: str) -> Any:
    parser = groups.add_parser(name, help=about, description=_sentence(about))
    _add_json_option(parser)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def _add(group: Any, name: str, do: Do, about: str) -> Any:
    parser = group.add_parser(name, help=about, description=_sentence(about))
    _add_json_option(parser)
    parser.set_defaults(do=do)
    return parser


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."


def _add_json_option(parser: ArgumentParser) -> None:
    """Accepted before and after the command; SUPPRESS keeps the earlier value."""
    parser.add_argument(
        "--json",
        action="store_true",
        default=SUPPRESS,
        help="print one JSON object a line",
    )


def _add_limit_option(parser: Any) -> None:
    parser.add_argument(
        "--limit",
        type=_count,
        default=50,
        metavar="N",
        help="list at most N, 0 for all (default: %(default)s)",
    )


def _add_list_of_named(group: Any, kind: str) -> None:
    parser = _add(group, "list", commands.list_named, f"list {kind}, newest first")
    parser.set_defaults(kind=kind)
    _add_limit_option(parser)


def _add_datasets(group: Any) -> None:
    _add_list_of_named(group, "datasets")
    push = _add(group, "push", commands.push, "upload a file as a dataset version")
    push.add_argument("file", type=Path, help="JSONL, JSON, CSV, TSV or Parquet")
    target = push.add_mutually_exclusive_group()
    target.add_argument(
        "--name", help="name of the new dataset (default: the file name)"
    )
    target.add_argument(
        "--to",
        metavar="DATASET",
        help="add the rows as the next version of this dataset (name or id)",
    )
    push.add_argument(
        "--prompt",
        metavar="COLUMN",
        help="prompt column (default: suggested by the file's columns)",
    )
    push.add_argument(
        "--template",
        metavar="JINJA",
        help="prompt template over the columns, instead of --prompt",
    )
    push.add_argument(
        "--system",
        metavar="COLUMN",
        help="column with the system message of each prompt, '' for none (default: "
        "suggested by the file's columns)",
    )
    push.add_argument(
        "--last-reply",
        choices=("answer", "prefill", "drop", "refuse"),
        help="what a chat's last assistant message is (default: the answer)",
    )
    push.add_argument(
        "--answer",
        metavar="COLUMN",
        help="answer column, '' for none (default: suggested by the file's columns)",
    )
    push.add_argument(
        "--column",
        dest="columns",
        metavar="COLUMN",
        action="append",
        help="extra column to keep; repeatable",
    )
    push.add_argument(
        "--leave-out",
        type=_count,
        default=0,
        metavar="N",
        help="skip rows with errors, if there are exactly N",
    )
    _add_key_option(push)


def _add_runs(group: Any) -> None:
    listing = _add(group, "list", commands.list_runs, "list runs, newest first")
    listing.add_argument(
        "-q",
        "--query",
        default="",
        help="list only runs that match, such as 'state = running and reward > 0.5'",
    )
    listing.add_argument(
        "--sort",
        default="-num",
        metavar="KEY",
        help="sort by this column; --sort=-KEY sorts in descending order",
    )
    _add_limit_option(listing)
    _run(_add(group, "show", commands.show_run, "show a run's state and step"))
    _add_launch(group)
    watch = _add(group, "watch", commands.watch, "print each step until the run ends")
    _run(watch)
    watch.add_argument(
        "--from-step",
        type=_count,
        metavar="N",
        help="first step to print (default: the first; on a terminal, the latest)",
    )
    watch.add_argument(
        "--every",
        type=_seconds,
        default=POLL_SECONDS,
        metavar="SECONDS",
        help="time between requests (default: %(default)s)",
    )
    _add_export(group)
    for verb, about in (
        ("stop", "finish the current step, save a checkpoint and end the run"),
        ("pause", "finish the current step, save a checkpoint and free the worker"),
        ("resume", "queue a paused run again"),
        ("cancel", "end a run at once, without a checkpoint"),
    ):
        parser = _add(group, verb, commands.act, about)
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
        help="new last step (default: unchanged, for a stopped run)",
    )


def _add_launch(group: Any) -> None:
    launch = _add(group, "launch", commands.launch, "queue a run")
    start = launch.add_mutually_exclusive_group()
    start.add_argument(
        "--preset",
        dest="start",
        default="",
        metavar="PRESET",
        help="start from a preset; `cohort presets list` lists them",
    )
    start.add_argument(
        "--clone",
        dest="start",
        type=lambda text: f"run-{commands.run_number(text)}",
        metavar="RUN",
        help="start from the settings of this run (number or URL)",
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
        help="use the preset scaled down for a small machine",
    )
    launch.add_argument("--name", help="run name (default: generated)")
    launch.add_argument(
        "--model",
        help="model folder or Hugging Face model ID (default: the run's, or a starter "
        "model)",
    )
    launch.add_argument(
        "--dataset",
        help="NAME, NAME@VERSION or a version ID (default: the run's, or the team's "
        "only dataset)",
    )
    launch.add_argument(
        "--recipe",
        help="reward: NAME, NAME@VERSION or a version ID (default: the run's, "
        "or the team's only reward)",
    )
    launch.add_argument(
        "--held-out",
        type=commands.held_out,
        action="append",
        metavar="[NAME=]DATASET",
        help="also evaluate on this dataset; repeatable",
    )
    launch.add_argument(
        "--set",
        type=commands.setting,
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change a setting, such as optim.learning_rate=1e-6; repeatable",
    )
    launch.add_argument(
        "--toml",
        type=Path,
        metavar="FILE",
        help="read the settings from a TOML file, - for standard input",
    )
    launch.add_argument("--yes", action="store_true", help="launch despite warnings")
    launch.add_argument(
        "--watch", action="store_true", help="print each step until the run ends"
    )
    _add_key_option(launch)


def _add_checkpoints(group: Any) -> None:
    listed = _add(group, "list", commands.list_checkpoints, "list a run's checkpoints")
    _run(listed)
    get = _add(
        group, "get", commands.get_checkpoint, "download a model to load or serve"
    )
    _run(get)
    get.add_argument(
        "which",
        nargs="?",
        default="best",
        help="best, newest, a step or a name (default: %(default)s)",
    )
    get.add_argument(
        "--to",
        type=Path,
        metavar="PATH",
        default=Path(),
        help="tar file to write, or a folder for it (default: this folder)",
    )
    get.add_argument("--force", action="store_true", help="overwrite an existing file")


def _add_export(group: Any) -> None:
    export = _add(group, "export", commands.export, "save a run's data to a file")
    _run(export)
    export.add_argument(
        "file",
        type=Path,
        help="file to write, - for standard output; the extension sets the format",
    )
    export.add_argument(
        "--what",
        default="",
        help="metrics, completions, tensorboard or pass-rates (default: guessed from "
        "the file name, else metrics), or a full name such as metrics.jsonl",
    )
    _add_step_options(export)
    export.add_argument(
        "--force", action="store_true", help="overwrite an existing file"
    )


def _add_step_options(parser: Any) -> None:
    for name, about in (("first", "earlier"), ("last", "later")):
        parser.add_argument(
            f"--{name}-step", type=_count, metavar="N", help=f"leave out {about} steps"
        )


def _add_push(push: Any) -> None:
    _run(push)
    push.add_argument(
        "name", type=hub.repository, metavar="USER/NAME", help="name of the dataset"
    )
    _add_step_options(push)
    push.add_argument(
        "--public",
        action="store_true",
        help="let everyone read it (default: a private dataset)",
    )
    push.add_argument(
        "--dry-run", action="store_true", help="list the files and their sizes only"
    )


def _add_trackers(groups: Any) -> None:
    imports = _group(groups, "import", "import runs of W&B and Trackio")
    for tool, title, source, about in (
        ("wandb", "W&B", "ENTITY/PROJECT[/RUN]", "one run, or all"),
        ("trackio", "Trackio", "PROJECT", "project of this machine"),
    ):
        parser = _add(imports, tool, trackers.import_runs, f"import runs of {title}")
        parser.set_defaults(tool=tool)
        parser.add_argument("source", metavar=source, help=about)
        parser.add_argument(
            "--leave-out", action="store_true", help="skip rows with errors"
        )
    export = _add(
        groups, "export", trackers.export_run, "log a run's metrics to another tool"
    )
    _run(export)
    export.add_argument("--to", required=True, choices=list(trackers.READERS))
    export.add_argument(
        "--project", default="cohort", help="project there (default: %(default)s)"
    )


def _run(parser: Any) -> None:
    parser.add_argument("run", type=commands.run_number, help=RUN)


def _add_key_option(parser: Any) -> None:
    parser.add_argument(
        "--key",
        default="",
        help="idempotency key: repeating a command with its key within a day has no "
        "effect",
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise ArgumentTypeError(f"must be a whole number of at least 0; got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3_600:
        raise ArgumentTypeError(f"must be 0.1 to 3600 seconds; got {text!r}")
    return seconds


MAX_ERRORS = 20  # invalid fields or rows that are printed
MAX_CHARS = 200  # of an argument


def main(arguments: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(handlers=[StderrHandler()])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for ASCII-only terminals
    parsed = make_parser().parse_args(argv)
    try:
        parsed.do(parsed)
    except CommandEnded as end:
        return end.code
    except Refused as error:
        print_error(str(error))
        if error.status == 401:
            print_error("Log in with a valid token: `cohort login URL`.")
        text = f"{error} {error.problem.get('detail', '')}"
        for problem in list(error.problem.get("errors", ()))[:MAX_ERRORS]:
            message = str(problem.get("message", ""))
            if message and message not in text:
                print_error(f"  {problem.get('field', '')}: {message}")
        return REFUSED
    except Unreachable as error:
        print_error(str(error))
        print_error("Check that the server is running and that its URL is correct.")
        return UNREACHABLE
    except UnicodeEncodeError as error:
        print_error(f"Arguments must be UTF-8; got {_shorten(error.object)!r}.")
        return MISUSED
    except (ValueError, ImportError) as error:
        print_error(str(error))
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe; without this, Python fails when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        print_error(
            f"{_shorten(str(error.filename or 'File error'))}: "
            f"{error.strerror or error}."
        )
        return MISUSED
    return DONE


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"


if __name__ == "__main__":
    raise SystemExit(main())
