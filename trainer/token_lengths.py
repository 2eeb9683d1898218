"""`python -m trainer tokens`: how many tokens a model's tokenizer makes of prompts."""

from __future__ import annotations

import argparse
import json
import sys

from trainer.config import DataConfig
from trainer.prompts import PromptRenderer, Row
from trainer.tokenizers import bound_memory, load_tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Count the tokens of prompts. Reads rows as JSON lines from stdin; writes a "
        "number a line, that of the prompt's tokens as a run with default settings "
        "renders it."
    )
    parser.add_argument("--model", required=True, help="folder or hub id")
    parser.add_argument("--revision", help="branch, tag or commit of a hub model")


def main(options: argparse.Namespace) -> int:
    bound_memory()
    try:
        tokenizer = load_tokenizer(options.model, revision=options.revision)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    renderer = PromptRenderer(tokenizer, DataConfig(rows="stdin"))
    for place, line in enumerate(sys.stdin):
        fields = json.loads(line)
        prompt = fields["prompt"]
        row = Row(
            index=place,
            prompt=prompt if isinstance(prompt, str) else tuple(prompt),
            answer=fields["answer"],
            columns=fields["columns"],
        )
        sys.stdout.write(f"{renderer.count_tokens(row)}\n")
    return 0
