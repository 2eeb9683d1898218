"""`python -m trainer rollout-server`: sample for a run, in a process of its own."""

from __future__ import annotations

import argparse
from typing import Any

from transformers import AutoConfig

from trainer.config import ModelConfig
from trainer.model.fingerprint import model_fingerprint, num_parameters
from trainer.model.loading import pick_device, pick_dtype
from trainer.rollout.server import RolloutServer
from trainer.rollout.vllm import SamplerSettings, VllmSampler
from trainer.serving.process import add_server_arguments, serve

_FLOAT32 = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser, port=8700, max_request_mib=4096)
    parser.add_argument(
        "--cache-gib",
        type=float,
        default=4.0,
        help="memory for keys and values on each GPU, in GiB (default: %(default)s)",
    )
    parser.add_argument(
        "--tensor-parallel-size",
        type=int,
        default=1,
        help="GPUs that the model is split over (default: %(default)s)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=8192,
        help="tokens of the longest prompt with its completion, as far as the model "
        "goes (default: %(default)s)",
    )
    parser.add_argument(
        "--max-rows",
        type=int,
        default=512,
        help="completions sampled at the same time (default: %(default)s)",
    )
    parser.add_argument(
        "--lora-rank",
        type=int,
        default=0,
        help="largest rank of adapters that are taken by themselves; of others the "
        "merged weights are sent (default: %(default)s)",
    )


def main(args: argparse.Namespace) -> int:
    return serve(
        args, _server, counts=("max_length", "max_rows", "tensor_parallel_size")
    )


def _server(args: argparse.Namespace, token: str) -> RolloutServer:
    if not 0 < args.cache_gib < 10_000:
        raise ValueError(f"--cache-gib must be above 0; got {args.cache_gib:g}.")
    fingerprint = model_fingerprint(args.model, revision=args.revision)
    config = ModelConfig(path=args.model, revision=args.revision, dtype=args.dtype)
    settings: Any = AutoConfig.from_pretrained(
        args.model, revision=args.revision or "main", trust_remote_code=False
    ).get_text_config()
    longest = getattr(settings, "max_position_embeddings", None) or args.max_length
    sampler = VllmSampler(
        SamplerSettings(
            model=args.model,
            revision=args.revision,
            dtype=pick_dtype(config, pick_device(config)),
            max_length=min(args.max_length, longest),
            max_rows=args.max_rows,
            cache_gib=args.cache_gib,
            lora_rank=args.lora_rank,
            tensor_parallel_size=args.tensor_parallel_size,
        )
    )
    num_bytes = _FLOAT32 * num_parameters(args.model, revision=args.revision)
    return RolloutServer(
        (args.host, args.port),
        sampler=sampler,
        fingerprint=fingerprint,
        vocabulary=settings.vocab_size,
        token=token,
        max_request_bytes=args.max_request_mib * 2**20,
        # Adapters of a high rank and what a file leaves out fit too.
        max_weights_bytes=2 * num_bytes + 2**26,
    )
