"""`python -m trainer reference`: serve a reference model to trainers."""

from __future__ import annotations

import argparse

from trainer.config import ModelConfig
from trainer.model.fingerprint import model_fingerprint
from trainer.model.policy import load_policy
from trainer.serving.process import add_server_arguments, serve
from trainer.serving.reference_server import ReferenceServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser, port=8600, max_request_mib=64)
    parser.add_argument(
        "--device",
        default="auto",
        choices=["auto", "cpu", "cuda"],
        help="where it runs",
    )
    parser.add_argument(
        "--max-batch-tokens",
        type=int,
        default=16_384,
        help="tokens, padding included, that go through the model at once "
        "(default: %(default)s)",
    )


def main(args: argparse.Namespace) -> int:
    return serve(args, _server, counts=("max_batch_tokens",))


def _server(args: argparse.Namespace, token: str) -> ReferenceServer:
    model = load_policy(
        ModelConfig(
            path=args.model,
            revision=args.revision,
            device=args.device,
            dtype=args.dtype,
        )
    )
    model.model.requires_grad_(requires_grad=False)
    return ReferenceServer(
        (args.host, args.port),
        model=model,
        fingerprint=model_fingerprint(args.model, revision=args.revision),
        token=token,
        max_batch_tokens=args.max_batch_tokens,
        max_request_bytes=args.max_request_mib * 2**20,
    )
