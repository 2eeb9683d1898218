"""What `cohort login`, `datasets`, `recipes`, `presets` and `sync` do."""

from __future__ import annotations

import getpass
import sys
from argparse import Namespace
from typing import Any

from trainer.client.api.client import Client
from trainer.client.api.datasets import Datasets
from trainer.client.api.records import DatasetVersion, Import, Listing
from trainer.client.command.output import Bar, say, say_json, say_table
from trainer.client.delivery import Delivery
from trainer.client.http import Refused, Server, find_server, keep_login
from trainer.client.spool import Spool


def sync(given: Namespace) -> None:
    """All of a folder that the server lacks."""
    spool = Spool(given.folder)
    if not spool.is_there:
        raise ValueError(
            f"{given.folder} holds no run: it has no run.json. Name the folder that "
            "the reporter spoke of."
        )
    delivery = Delivery(spool, find_server())
    delivery.deliver()
    if delivery.over:
        raise ValueError(f"Not all was sent. {delivery.over}")
    if given.json:
        say_json({"folder": str(given.folder), "address": delivery.address})
    else:
        say(f"All of {given.folder} is stored: {delivery.address}")


def log_in(given: Namespace) -> None:
    """The token is asked for, or read from a pipe: an argument would be seen."""
    if sys.stdin.isatty():
        token = getpass.getpass("Token (made on the page API and tokens): ")
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise ValueError(
            "No token was given. Make one on the page API and tokens, and paste it, or "
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
        said = str(error).replace("send leave_out: ", "give --leave-out ")
        raise Refused(error.status, said, error.problem) from None


def _told(version: DatasetVersion) -> str:
    less = f", without {version.num_left_out:,} refused" if version.num_left_out else ""
    rows = "row" if version.num_rows == 1 else "rows"
    prompt, answer = (version.mapping.get(one) for one in ("prompt", "answer"))
    return (
        f"{version.dataset}@{version.number} has {version.num_rows:,} {rows}{less}; "
        f"prompt: {prompt}, answer: {answer or 'none'}."
    )


def list_datasets(given: Namespace) -> None:
    found = Client().datasets.list(limit=limit_of(given))
    if given.json:
        say_each(found)
        return
    rows = [(d.id, d.name, f"{d.created_at:%Y-%m-%d}", d.description) for d in found]
    say_table(("ID", "NAME", "CREATED", "ABOUT"), rows, right="ID")
    say_rest(found, "datasets")


def list_recipes(given: Namespace) -> None:
    found = Client().recipes.list(limit=limit_of(given))
    if given.json:
        say_each(found)
        return
    rows = [(r.id, r.name, f"{r.created_at:%Y-%m-%d}", r.description) for r in found]
    say_table(("ID", "NAME", "CREATED", "ABOUT"), rows, right="ID")
    say_rest(found, "recipes")


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
