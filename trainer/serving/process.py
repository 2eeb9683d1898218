"""A model server's life as a command: its arguments, its line, its end."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
import transformers

from trainer.serving.addresses import is_private
from trainer.serving.server import ModelServer
from trainer.serving.token import read_or_make_token

EXIT_BAD_ARGUMENTS = 2


def add_server_arguments(
    parser: argparse.ArgumentParser, *, port: int, max_request_mib: int
) -> None:
    """What every server is told; the numbers are its own defaults."""
    parser.add_argument("--model", required=True, help="model folder or hub id")
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument(
        "--token-file",
        type=Path,
        required=True,
        help="file with the token that trainers must know; made when there is none",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on, of this machine or a private network "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--port", type=int, default=port, help="port; 0: any free one (%(default)s)"
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16"],
        help="number format of the weights",
    )
    parser.add_argument(
        "--max-request-mib",
        type=int,
        default=max_request_mib,
        help="largest question, in MiB (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")


def serve(
    args: argparse.Namespace,
    make: Callable[[argparse.Namespace, str], ModelServer],
    *,
    counts: tuple[str, ...] = (),
) -> int:
    """Serve until SIGTERM or SIGINT, then answer what is open and end with 0.

    Args:
        args: with what `add_server_arguments` added.
        make: the server, from the arguments and the token.
        counts: further arguments that must be at least 1 where they are given.
    """
    try:
        server = _server(args, make, counts)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_ARGUMENTS
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _Stop(server))
    # With port 0 this line is how anyone knows where it is.
    host, port = args.host, server.server_port
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sys.stdout.write(f"serving {args.model} on http://{where}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    finally:
        server.server_close()
    sys.stdout.write("stopped\n")
    return 0


def _server(
    args: argparse.Namespace,
    make: Callable[[argparse.Namespace, str], ModelServer],
    counts: tuple[str, ...],
) -> ModelServer:
    for name in (*counts, "max_request_mib", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(
                f"--{name.replace('_', '-')} must be at least 1; got {value}."
            )
    if not 0 <= args.port <= 65_535:
        raise ValueError(f"--port must be from 0 to 65535; got {args.port}.")
    if not is_private(args.host):
        raise ValueError(
            f"{args.host} is not an address of this machine or of a private network. "
            "What is sent is not encrypted: give --host such an address, and reach it "
            "from elsewhere through a tunnel."
        )
    token = read_or_make_token(args.token_file)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        return make(args, token)
    except OSError as error:
        raise ValueError(
            f"Cannot listen on {args.host}:{args.port}: {error.strerror}. Give another "
            "--port or --host."
        ) from None


class _Stop:
    """The first signal ends the server in order, a second one at once."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def __call__(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        # shutdown waits for the loop that this handler interrupts
        threading.Thread(target=self._server.shutdown).start()
