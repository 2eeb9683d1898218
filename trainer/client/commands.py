"""What the commands of `cohort` do."""

from __future__ import annotations

import getpass
import json
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainer.client.api.client import Client
from trainer.client.api.records import DatasetVersion, Group, GroupDetail
from trainer.client.api.run import Run, file_name
from trainer.client.delivery import Delivery
from trainer.client.http import Refused, Server, find_server, keep_login, query_of
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
    data = {"folder": str(given.folder), "address": delivery.address}
    _show(given, data, f"The server has all of {given.folder}: {delivery.address}")


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
    _show(
        given,
        {"url": server.url, "me": me},
        f"Logged in to {me.team.name} as {me.person.name}, for "
        f"{', '.join(me.scopes)}. The token is in {path}.",
    )


def push(given: Namespace) -> None:
    name = given.file.name
    try:
        with Bar(f"Sending {name}") as sending, Bar(f"Importing {name}") as importing:
            version = Client().datasets.push(
                given.file,
                name=given.name,
                dataset=given.to,
                prompt=given.prompt,
                answer=given.answer,
                columns=given.columns,
                leave_out=given.leave_out,
                key=given.key,
                on_upload=sending,
                on_import=importing,
            )
    except Refused as error:
        raise error.reworded(_OPTIONS) from None
    _show(given, version, _told(version))


def _told(version: DatasetVersion) -> str:
    less = f", without {version.num_left_out:,} refused" if version.num_left_out else ""
    rows = "row" if version.num_rows == 1 else "rows"
    prompt, answer = (version.mapping.get(one) for one in ("prompt", "answer"))
    return (
        f"{version.dataset}@{version.number} has {version.num_rows:,} {rows}{less}; "
        f"prompt: {prompt}, answer: {answer or 'none'}."
    )


def list_named(given: Namespace) -> None:
    """Datasets or recipes."""
    found = Client().iterate(f"/{given.kind}", limit=_one_more(given))
    titles = ("ID", "NAME", "CREATED", "ABOUT")
    _show_list(given, list(found), titles, _named_row, right="ID")


def _named_row(one: Any) -> tuple[Any, ...]:
    return one["id"], one["name"], one["created_at"][:10], one["description"]


def list_presets(given: Namespace) -> None:
    found = Client().get("/presets")["presets"]
    _show_list(given, found, ("KEY", "TITLE"), lambda one: (one["key"], one["title"]))


def _one_more(given: Namespace) -> int | None:
    """Which says whether there are more than are listed."""
    return given.limit + 1 if given.limit else None


def _show_list(
    given: Namespace,
    found: Sequence[Any],
    titles: Sequence[str],
    row_of: Callable[[Any], Sequence[Any]],
    *,
    right: str = "",
) -> None:
    limit = getattr(given, "limit", 0) or len(found)
    if given.json:
        for one in found[:limit]:
            say_json(one)
        return
    say_table(titles, map(row_of, found[:limit]), right=right)
    if len(found) > limit:
        say(f"These are the first {limit:,}; --limit 0 lists all.")


def _show(given: Namespace, value: Any, text: str) -> None:
    say_json(value) if given.json else say(text)


COLUMNS = ("ID", "NAME", "STATE", "STEP", "OF", "REWARD", "BEST", "OWNER", "CREATED")
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
    runs = Client().runs
    found = runs.list(given.query, sort=given.sort, limit=_one_more(given))
    _show_list(given, found, COLUMNS, _run_row, right="ID STEP OF REWARD BEST")


def _run_row(run: Run) -> tuple[Any, ...]:
    return (
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


def show_run(given: Namespace) -> None:
    run = Client().runs.get(given.run)
    _show_run(given, run)
    if run.reason and not given.json:
        say(run.reason)


def launch(given: Namespace) -> None:
    toml = None
    if given.toml is not None:
        toml = sys.stdin.read() if str(given.toml) == "-" else _text_of(given.toml)
    client = Client()
    try:
        run = client.runs.launch(
            given.start,
            name=given.name,
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
        raise error.reworded(_OPTIONS) from None
    if not (given.json and given.watch):
        _show_run(given, run)
    if given.watch:
        show_until_it_ends(client, run.id, as_json=given.json)


# The options that answer a refusal, for the API's fields and the client's arguments.
_OPTIONS = {
    "send leave_out: ": "give --leave-out ",
    "pass dataset=": "give --to ",
    "Pass recipe=": "Give --recipe ",
    "Pass dataset=": "Give --dataset ",
    "Send confirm: true to launch": "Give --yes to launch",
}


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
    run = Client().runs.get(given.run)
    getattr(run, given.verb)()
    _show_run(given, run.refresh())


def extend(given: Namespace) -> None:
    run = Client().runs.get(given.run)
    run.extend(given.last_step)
    _show_run(given, run.refresh())


def export(given: Namespace) -> None:
    client, target = Client(), given.file
    steps = {"first_step": given.first_step, "last_step": given.last_step}
    if str(target) == "-":  # what is printed cannot be taken back, so once
        name = quote(file_name(target, given.what), safe="")
        asked = f"/runs/{given.run}/files/{name}{query_of(**steps)}"
        for piece in client.server.pieces(asked):
            sys.stdout.buffer.write(piece)
        return
    run = client.runs.get(given.run)
    with Bar(f"Taking {target.name}") as bar:
        run.export(
            target, what=given.what, **steps, overwrite=given.force, on_progress=bar
        )
    num_bytes = target.stat().st_size
    data = {"run": run.id, "file": str(target), "num_bytes": num_bytes}
    _show(given, data, f"{target} has {num_bytes:,} bytes.")


def show_groups(given: Namespace) -> None:
    run = Client().runs.get(given.run)
    if given.group is not None:
        group = run.group(given.step, given.group)
        say_json(group) if given.json else _say_group(run, group)
        return
    found = run.groups(given.step)
    if not found and not given.json:
        raise ValueError(
            f"Run {run.id} has no groups of step {given.step}; it is {run.state} at "
            f"step {run.last_step}."
        )
    titles = ("GROUP", "SIGNAL", "MEAN", "STD", "PROMPT")
    _show_list(given, found, titles, _group_row, right="GROUP MEAN STD")


def _group_row(one: Group) -> tuple[Any, ...]:
    prompt = short(one.snippet or one.prompt, PROMPT_CHARS)
    mean, std = number(one.reward_mean), number(one.reward_std)
    return one.prompt_index, one.signal, mean, std, prompt


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


def _show_run(given: Namespace, run: Run) -> None:
    if given.json:
        say_json(run)
        return
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
