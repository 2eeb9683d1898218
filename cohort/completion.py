"""`cohort completion SHELL`: a script that completes commands, options and runs.

The script asks `cohort complete WORD…`, which reads the parser, so that it never needs
to be written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from cohort.http import Refused, Server, Unreachable, find_server
from cohort.output import print_text, short

CACHE_SECONDS = 60.0
TIMEOUT_SECONDS = 3.0  # someone waits for it
NUM_RUNS = 100  # newest
ABOUT_CHARS = 60
SCRIPTS = {
    "bash": r"""
# ~/.bashrc: eval "$(cohort completion bash)"
_cohort() {
    local value about
    COMPREPLY=()
    while IFS=$'\t' read -r value about; do
        COMPREPLY+=("$value${about:+  $about}")
    done < <("$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    # 37 and 42: menu-complete and insert-completions, which insert what is listed.
    if (( ${#COMPREPLY[@]} == 1 || COMP_TYPE == 37 || COMP_TYPE == 42 )); then
        COMPREPLY=("${COMPREPLY[@]%%  *}")
    fi
}
complete -o default -F _cohort cohort
""",
    "zsh": r"""
#compdef cohort
# ~/.zshrc, below compinit: eval "$(cohort completion zsh)"
_cohort() {
    local value about
    local -a values abouts
    while IFS=$'\t' read -r value about; do
        values+=("$value")
        abouts+=("$value${about:+  $about}")
    done < <("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( $#values )); then
        compadd -l -d abouts -a values
    else
        _files
    fi
}
if [ "${funcstack[1]}" = "_cohort" ]; then _cohort "$@"; else compdef _cohort cohort; fi
""",
    "fish": r"""
# cohort completion fish > ~/.config/fish/completions/cohort.fish
function __cohort_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct | string collect --allow-empty)
    set -l found ($words[1] complete -- $words[2..] "$current" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c cohort -f -a '(__cohort_complete)'
""",
}


def print_script(args: Namespace) -> None:
    print_text(SCRIPTS[args.shell].strip())


def complete(args: Namespace) -> None:
    """Print what may stand for the last word, a line each, with a tab before its
    description.
    """
    for value, about in list_candidates(args.parser, args.words):
        print_text(f"{value}\t{short(about, ABOUT_CHARS)}")


def list_candidates(
    parser: ArgumentParser, words: Sequence[str]
) -> list[tuple[str, str]]:
    *before, current = words or [""]
    positionals, option = _positionals(parser), None
    for word in before:
        if option is not None:  # the word is its value
            option = None
        elif word.startswith("-"):
            option = parser._option_string_actions.get(word)
            if option is not None and option.nargs == 0:
                option = None
        elif positionals:
            action = positionals.pop(0)
            if isinstance(action, _SubParsersAction):
                if word not in action.choices:
                    return []
                parser = action.choices[word]
                positionals = _positionals(parser)
    if option is None and current.startswith("-"):
        pairs = _options(parser)
    else:
        pairs = _values(option or next(iter(positionals), None))
    return [pair for pair in pairs if pair[0].startswith(current)]


def _positionals(parser: ArgumentParser) -> list[Action]:
    return [action for action in parser._actions if not action.option_strings]


def _options(parser: ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--"):
                yield name, (action.help or "") % vars(action)


def _values(action: Action | None) -> Iterator[tuple[str, str]]:
    if isinstance(action, _SubParsersAction):
        for command in action._choices_actions:
            yield command.dest, command.help or ""
    elif action and (action.dest == "run" or action.metavar == "RUN"):
        yield from ((str(id), f"{name}, {state}") for id, name, state in read_runs())
    elif action and action.choices:
        yield from ((str(choice), "") for choice in action.choices)


def read_runs() -> list[tuple[int, str, str]]:
    """Return number, name and state of the newest runs, at most 60 s old; none if the
    server does not respond.
    """
    try:
        server = find_server()
    except ValueError:
        return []
    path = _cache_path(server)
    with suppress(OSError, ValueError):
        if time.time() - path.stat().st_mtime < CACHE_SECONDS:
            return [tuple(run) for run in json.loads(path.read_text())]
    try:
        address = f"/runs?limit={NUM_RUNS}&sort=-num"
        page = server.send("GET", address, timeout_seconds=TIMEOUT_SECONDS)
        runs = [(run["id"], run["name"], run["state"]) for run in page["items"]]
    except (Refused, Unreachable, KeyError, TypeError):
        runs = []  # kept too: the next key press need not wait again
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(json.dumps(runs))
    return runs


def _cache_path(server: Server) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = hashlib.sha256(f"{server.url} {server.token}".encode()).hexdigest()
    return Path(base) / "cohort" / f"runs-{name[:32]}.json"
