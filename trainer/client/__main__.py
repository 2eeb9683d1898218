"""`cohort`: log in, send what could not be sent, follow verl."""

from __future__ import annotations

import argparse
import getpass
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.client import verl
from trainer.client.delivery import Delivery
from trainer.client.http import Refused, Server, Unreachable
from trainer.client.login import find_server, keep_login
from trainer.client.spool import Spool

FAILED, MISUSED = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(format="%(message)s")
    if given[:1] == ["verl"]:
        return verl.main(given[1:])
    parsed = _parser().parse_args(given)
    try:
        said: str = parsed.do(parsed)
    except (Unreachable, Refused) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command speaks so
        return FAILED
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return MISUSED
    print(said)  # noqa: T201
    return 0


def _login(given: argparse.Namespace) -> str:
    """The token is asked for, or read from a pipe: an argument would be seen."""
    if sys.stdin.isatty():
        token = getpass.getpass("Token (made on the page API tokens): ")
    else:
        token = sys.stdin.readline()
    server = Server(given.url.rstrip("/"), token.strip())
    who = server.get("/me")
    path = keep_login(server)
    name, team = who["person"]["name"], who["team"]["name"]
    scopes = ", ".join(who["scopes"])
    return f"Logged in to {team} as {name}, for {scopes}. The token is in {path}."


def _sync(given: argparse.Namespace) -> str:
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
    return f"All of {given.folder} is stored: {delivery.address}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cohort", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    login = commands.add_parser("login", help="keep a token for this machine")
    login.add_argument("url", help="of the server: https://cohort.example.org")
    login.set_defaults(do=_login)
    sync = commands.add_parser("sync", help="send what a reporter kept on the disk")
    sync.add_argument("folder", type=Path)
    sync.set_defaults(do=_sync)
    commands.add_parser("verl", help="follow verl's rollout dumps")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
