"""What `cohort runs` and `cohort groups` do."""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from trainer.client.api.client import Client
from trainer.client.api.files import default_name, print_file
from trainer.client.api.records import GroupDetail
from trainer.client.api.run import Run
from trainer.client.command.asking import limit_of, say_each, say_rest
from trainer.client.command.output import Bar, number, say, say_json, say_table, short
from trainer.client.command.watch import show_until_it_ends
from trainer.client.http import Refused

COLUMNS = ("ID", "NAME", "STATE", "STEP", "OF", "REWARD", "BEST", "OWNER", "CREATED")
CONFLICT = 409
PROMPT_CHARS = 60
MAX_TOML_BYTES = 2**20  # the longest preset has a hundredth of it


def run_number(text: str) -> int:
    """Of a run's number, or the address of its page.

    >>> run_number("7"), run_number("https://cohort.example.org/lab/runs/7/groups")
    (7, 7)
    """
    found = re.fullmatch(r"\d{1,18}", text) or re.search(
        r"/runs/(\d{1,18})(?!\d)", text
    )
    if found is None:
        raise ArgumentTypeError(
            f"a run is named by its number or the address of its page; got {text!r}"
        )
    return int(found[found.lastindex or 0])


def list_runs(given: Namespace) -> None:
    found = Client().runs.list(given.query, sort=given.sort, limit=limit_of(given))
    if given.json:
        say_each(found)
        return
    rows = [
        (
            run.id,
            run.name,
            run.state,
            run.last_step,
            run.num_steps,
            number(run.last_reward),
            number(run.best_reward),
            run.owner.username if run.owner else "–",
            f"{run.created_at:%Y-%m-%d %H:%M}",
        )
        for run in found
    ]
    say_table(COLUMNS, rows, right="ID STEP OF REWARD BEST")
    say_rest(found, "runs")


def show_run(given: Namespace) -> None:
    run = Client().runs.get(given.run)
    if given.json:
        say_json(run)
    else:
        _say_run(run)
        if run.reason:
            say(run.reason)


def launch(given: Namespace) -> None:
    toml = None
    if given.toml is not None:
        toml = sys.stdin.read() if str(given.toml) == "-" else _text_of(given.toml)
    client = Client()
    try:
        run = client.runs.launch(
            given.preset,
            name=given.name,
            clone_of=given.clone,
            fork_of=given.fork,
            is_scaled=given.scaled,
            model=given.model,
            dataset=given.dataset,
            recipe=given.recipe,
            held_out=dict(given.held_out) if given.held_out else None,
            settings=dict(given.set),
            toml=toml,
            confirm=given.yes,
            key=given.key,
        )
    except Refused as error:
        raise _told_how_to_confirm(error) from None
    if not given.json:
        _say_run(run)
    elif not given.watch:
        say_json(run)
    if given.watch:
        show_until_it_ends(client, run.id, as_json=given.json)


def _told_how_to_confirm(error: Refused) -> Refused:
    fields = [each.get("field") for each in error.problem.get("errors", ())]
    if error.status != CONFLICT or fields.count("body.confirm") == 0:
        return error
    said = str(error).replace("Send confirm: true to launch", "Give --yes to launch")
    return Refused(error.status, said, {})


def watch(given: Namespace) -> None:
    show_until_it_ends(
        Client(),
        given.run,
        as_json=given.json,
        from_step=given.from_step,
        every_seconds=given.every,
    )


def ask(given: Namespace) -> None:
    """To stop, cancel, pause or resume."""
    client = Client()
    run = client.runs.get(given.run)
    getattr(run, given.verb)()
    run = run.refresh()
    if given.json:
        say_json(run)
    else:
        _say_run(run)


def export(given: Namespace) -> None:
    run = Client().runs.get(given.run)
    steps = {"first_step": given.first_step, "last_step": given.last_step}
    if str(given.file) == "-":
        name = default_name(given.what)
        print_file(run.client.asker, f"/runs/{run.id}/files/{name}", steps)
        return
    target = given.file or Path(f"run-{run.id}-{default_name(given.what)}")
    with Bar(f"Taking {target.name}", unit="bytes") as bar:
        run.export(
            target, what=given.what, **steps, overwrite=given.force, on_progress=bar
        )
    num_bytes = target.stat().st_size
    if given.json:
        say_json({"run": run.id, "file": str(target), "num_bytes": num_bytes})
    else:
        say(f"{target} has {num_bytes:,} bytes.")


def show_groups(given: Namespace) -> None:
    run = Client().runs.get(given.run)
    if given.group is not None:
        group = run.group(given.step, given.group)
        say_json(group) if given.json else _say_group(run, group)
        return
    found = run.groups(given.step)
    if given.json:
        say_each(found)
        return
    if not found:
        raise ValueError(
            f"Run {run.id} has no groups of step {given.step}; it is {run.state} at "
            f"step {run.last_step}."
        )
    rows = [
        (
            one.prompt_index,
            one.signal,
            number(one.reward_mean),
            number(one.reward_std),
            short(one.prompt, PROMPT_CHARS),
        )
        for one in found
    ]
    titles = ("GROUP", "SIGNAL", "MEAN", "STD", "PROMPT")
    say_table(titles, rows, right="GROUP MEAN STD")


def _say_group(run: Run, group: GroupDetail) -> None:
    say(f"{run.address}groups/{group.step}/{group.prompt_index}/")
    say(
        f"{group.signal}, reward {number(group.reward_mean)} ± "
        f"{number(group.reward_std)}, answer: {group.answer or 'none'}"
    )
    say(f"\n{group.prompt}")
    for one in group.completions:
        rules = "  ".join(f"{n} {number(v)}" for n, v in one.rule_scores.items())
        say(
            f"\n#{one.position}  reward {number(one.reward)}  advantage "
            f"{number(one.advantage)}  {rules}  {one.num_tokens or '–'} tokens, "
            f"{one.end_reason}"
        )
        say("\n".join(f"    {line}" for line in one.text.split("\n")))


def _say_run(run: Run) -> None:
    say(
        f"Run {run.id} ({run.name}) is {run.state}, step {run.last_step:,} of "
        f"{run.num_steps:,}: {run.address}"
    )


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            read = file.read(MAX_TOML_BYTES + 1)
        if len(read) <= MAX_TOML_BYTES:
            return read.decode()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}.") from None
    raise ValueError(
        f"{path} has more than {MAX_TOML_BYTES:,} bytes, which no run's settings have."
    )


def setting(text: str) -> tuple[str, Any]:
    """
    >>> setting("optim.learning_rate=1e-6"), setting("loss.surrogate=cispo")
    (('optim.learning_rate', 1e-06), ('loss.surrogate', 'cispo'))
    """
    name, is_given, value = text.partition("=")
    if not is_given or not name.strip():
        raise ArgumentTypeError(f"a setting is PATH=VALUE; got {text!r}")
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = value
    is_value = read is None or isinstance(read, str | bool | int | float)
    return name.strip(), read if is_value else value


def held_out(text: str) -> tuple[str, str]:
    """
    >>> held_out("hard=sums@2"), held_out("sums")
    (('hard', 'sums@2'), ('sums', 'sums'))
    """
    name, is_given, reference = text.partition("=")
    return (name, reference) if is_given else (text.rpartition("@")[0] or text, text)
