"""`python -m trainer tokens`: counts the tokens of prompts."""

from __future__ import annotations

import argparse
import json
import sys

from trainer.config import DataConfig
from trainer.data import PromptRenderer, Row
from trainer.tokenizers import bound_memory, bounded_seconds, load_bounded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Count the tokens of prompts. Reads rows as JSON lines from stdin; writes one "
        "number per line: the prompt's tokens as a run with default settings renders "
        "it."
    )
    parser.add_argument(
        "--model", required=True, help=("model folder or Hugging Face model ID")
    )
    parser.add_argument(
        "--revision", help=("branch, tag or commit of a Hugging Face model")
    )


def main(options: argparse.Namespace) -> int:
    bound_memory()
    try:
        tokenizer = load_bounded(options.model, revision=options.revision)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    renderer = PromptRenderer(tokenizer, DataConfig(rows="stdin"))
    for index, line in enumerate(sys.stdin):
        try:
            with bounded_seconds():
                num_tokens = len(renderer.token_ids(_row(index, line)))
        except ValueError as error:
            sys.stderr.write(f"Line {index + 1}: {error}\n")
            return 2
        sys.stdout.write(f"{num_tokens}\n")
    return 0


def _row(index: int, line: str) -> Row:
    try:
        fields = json.loads(line)
        prompt = fields["prompt"]
        return Row(
            index=index,
            prompt=prompt if isinstance(prompt, str) else tuple(prompt),
            answer=fields["answer"],
            columns=fields["columns"],
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{line[:80]!r} is not an object with prompt, answer and columns "
            f"({type(error).__name__}: {error})."
        ) from None
