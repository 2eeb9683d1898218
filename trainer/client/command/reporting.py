"""`cohort sync`: what a reporter kept on the disk, sent."""

from __future__ import annotations

from argparse import Namespace

from trainer.client.command.output import say, say_json
from trainer.client.delivery import Delivery
from trainer.client.login import find_server
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
