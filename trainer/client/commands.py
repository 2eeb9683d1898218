"""What the commands of `cohort` do."""

from __future__ import annotations

import getpass
import json
import re
import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from trainer.client.api.client import Client
from trainer.client.api.datasets import Datasets
from trainer.client.api.files import default_name, print_file
from trainer.client.api.records import (
    Dataset,
    DatasetVersion,
    GroupDetail,
    Import,
    Listing,
    Recipe,
)
from trainer.client.api.run import Run
from trainer.client.delivery import Delivery
from trainer.client.http import Refused, Server, find_server, keep_login
from trainer.client.output import Bar, number, say, say_json, say_table, short
from trainer.client.spool import Spool
from trainer.client.watch import show_until_it_ends


def sync(given: Namespace) -> None:
    """All of a folder that the server lacks."""
    spool = Spool(given.folder)
    if not spool.is_there:
        raise ValueError(
            f"{given.folder} holds no run: it has no run.json. Name the folder that "
            "the reporter printed."
        )
    delivery = Delivery(spool, find_server())
    delivery.deliver()
    if delivery.over:
        raise ValueError(f"Some events were not sent. {delivery.over}")
    if given.json:
        say_json({"folder": str(given.folder), "address": delivery.address})
    else:
        say(f"The server has all of {given.folder}: {delivery.address}")


def log_in(given: Namespace) -> None:
    """The token is asked for, or read from a pipe: an argument would be seen."""
    if sys.stdin.isatty():
        token = getpass.getpass("Token (made on the page API and tokens): ")
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise ValueError(
            "No token was given. Make one on the page API and tokens, then paste it or "
            "pipe it in."
        )
    server = Server(given.url.rstrip("/"), token.strip())
    me = Client(server.url, server.token).me
    path = keep_login(server)
    if given.json:
        say_json({"url": server.url, "me": me})
    else:
        say(
            f"Logged in to {me.team.name} as {me.person.name}, for "
            f"{', '.join(me.scopes)}. The token is in {path}."
        )


def push(given: Namespace) -> None:
    datasets = Client().datasets
    job = _send(datasets, given)
    if given.no_wait and job.version is None:
        said = f"Import {job.id} of {job.filename} is {job.state}."
        say_json(job) if given.json else say(said)
        return
    with Bar(f"Importing {given.file.name}", unit="bytes") as bar:
        version = datasets.wait(job, on_progress=bar)
    if given.json:
        say_json(version)
        return
    say(_told(version))


def _send(datasets: Datasets, given: Namespace) -> Import:
    try:
        with Bar(f"Sending {given.file.name}", unit="bytes") as bar:
            return datasets.upload(
                given.file,
                name=given.name,
                dataset=given.to,
                prompt=given.prompt,
                answer=given.answer,
                columns=given.columns,
                leave_out=given.leave_out,
                key=given.key,
                on_progress=bar,
            )
    except Refused as error:
        raise _in_options(error) from None


def _told(version: DatasetVersion) -> str:
    less = f", without {version.num_left_out:,} refused" if version.num_left_out else ""
    rows = "row" if version.num_rows == 1 else "rows"
    prompt, answer = (version.mapping.get(one) for one in ("prompt", "answer"))
    return (
        f"{version.dataset}@{version.number} has {version.num_rows:,} {rows}{less}; "
        f"prompt: {prompt}, answer: {answer or 'none'}."
    )


def list_datasets(given: Namespace) -> None:
    _say_named(given, Client().datasets.list(limit=limit_of(given)), "datasets")


def list_recipes(given: Namespace) -> None:
    _say_named(given, Client().recipes.list(limit=limit_of(given)), "recipes")


def _say_named(
    given: Namespace, found: Listing[Dataset] | Listing[Recipe], what: str
) -> None:
    if given.json:
        say_each(found)
        return
    rows = [(x.id, x.name, f"{x.created_at:%Y-%m-%d}", x.description) for x in found]
    say_table(("ID", "NAME", "CREATED", "ABOUT"), rows, right="ID")
    say_rest(found, what)


def list_presets(given: Namespace) -> None:
    found = Client().runs.presets()
    if given.json:
        say_each(found)
    else:
        say_table(("KEY", "TITLE"), [(one.key, one.title) for one in found])


def say_each(found: Listing[Any]) -> None:
    for one in found:
        say_json(one)


def say_rest(found: Listing[Any], what: str) -> None:
    if found.total is not None and found.total > len(found):
        say(f"{len(found):,} of {found.total:,} {what}; --limit 0 shows all.")


def limit_of(given: Namespace) -> int | None:
    limit: int = given.limit
    return limit or None


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
        raise _in_options(error) from None
    if not given.json:
        _say_run(run)
    elif not given.watch:
        say_json(run)
    if given.watch:
        show_until_it_ends(client, run.id, as_json=given.json)


_OPTIONS = {
    "send leave_out: ": "give --leave-out ",
    "pass dataset=": "give --to ",
    "Pass recipe=": "Give --recipe ",
    "Pass dataset=": "Give --dataset ",
    "Send confirm: true to launch": "Give --yes to launch",
}


def _in_options(error: Refused) -> Refused:
    """With the options that answer it, in place of arguments and fields."""
    error = error.reworded(_OPTIONS)
    fields = [each.get("field") for each in error.problem.get("errors", ())]
    is_unconfirmed = error.status == CONFLICT and "body.confirm" in fields
    return Refused(error.status, str(error), {}) if is_unconfirmed else error


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


def extend(given: Namespace) -> None:
    run = Client().runs.get(given.run)
    run.extend(given.last_step)
    run = run.refresh()
    say_json(run) if given.json else _say_run(run)


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
            short(one.snippet or one.prompt, PROMPT_CHARS),
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
        f"{path} has more than {MAX_TOML_BYTES:,} bytes, too many for settings."
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
