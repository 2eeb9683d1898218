"""`python -m trainer preview`: rows as the model sees them, one at a time.

Requests and replies are lines of JSON. The first line of output is `{}` once the
tokenizer is loaded, or `{"problem": "…"}`. Then, for each line such as

    {"index": 0, "row": {"prompt": "3+4?", "answer": "7", "columns": {}}, "data": {…}}

where `data` are settings of DataConfig, it writes either a problem or

    {"pieces": [["<s>", true], ["3+4?", false]], "last_pieces": [], …}

A piece is the text of consecutive tokens, and whether it is a special token.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from trainer.config import DataConfig
from trainer.data import PromptRenderer, Row
from trainer.tokenizers import (
    bound_memory,
    bounded_seconds,
    decode_text,
    first_line,
    load_bounded,
    special_ids,
)

# Of a long prompt, whose middle is left out: its end is where the completion begins.
SHOWN_FIRST, SHOWN_LAST = 1_500, 500
SHOWN_CHARS = 200_000  # of either end; one token of a tokenizer may be of any length
IDLE_SECONDS = 60  # without a request, until the process ends


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Render prompts as a run does. Reads rows and settings as JSON lines from "
        "stdin; writes one JSON line per row with the prompt's pieces and its number "
        "of tokens, or the error."
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
        _write({"problem": str(error)})
        return 2
    _write({})
    signal.alarm(IDLE_SECONDS)
    for line in sys.stdin:
        try:
            with bounded_seconds():
                answered = answer(tokenizer, json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            what = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"{line[:80]!r} is not a row to preview ({what}).\n")
            return 2
        _write(answered)
        signal.alarm(IDLE_SECONDS)
    return 0


def answer(
    tokenizer: PreTrainedTokenizerBase, question: dict[str, Any]
) -> dict[str, Any]:
    """Return the reply to a line."""
    prompt = question["row"]["prompt"]
    row = Row(
        index=question["index"],
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        answer=question["row"]["answer"],
        columns=question["row"]["columns"],
    )
    try:
        config = DataConfig.model_validate({**question["data"], "rows": "stdin"})
        token_ids = PromptRenderer(tokenizer, config).token_ids(row)
    except ValueError as error:
        return {"problem": str(error)}
    except MemoryError as error:
        return {"problem": f"The prompt needs too much memory: {first_line(error)}"}
    return {
        "pieces": cut_up(tokenizer, token_ids[:SHOWN_FIRST]),
        # What is left out lies between these two.
        "last_pieces": cut_up(
            tokenizer, token_ids[max(SHOWN_FIRST, len(token_ids) - SHOWN_LAST) :]
        ),
        "num_tokens": len(token_ids),
        "num_unknown": _num_unknown(tokenizer, token_ids),
        "num_left_out": max(0, len(token_ids) - SHOWN_FIRST - SHOWN_LAST),
    }


def _num_unknown(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> int:
    """Tokens that stand for what the vocabulary lacks."""
    unknown = tokenizer.unk_token_id
    # As in GPT-2's, the same token may begin and end texts, and nothing is lacking.
    if unknown in (None, tokenizer.bos_token_id, tokenizer.eos_token_id):
        return 0
    return sum(token_id == unknown for token_id in token_ids)


def cut_up(
    tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]
) -> list[tuple[str, bool]]:
    """Texts and whether each is a special token, which stands alone."""
    special = special_ids(tokenizer)
    pieces: list[tuple[str, bool]] = []
    room = SHOWN_CHARS
    for is_special, grouped in itertools.groupby(token_ids, special.__contains__):
        together = list(grouped)
        runs = [[token] for token in together] if is_special else [together]
        for run in runs:
            text = decode_text(tokenizer, run)
            pieces.append(
                (text if len(text) <= room else f"{text[:room]}…", is_special)
            )
            room -= min(room, len(text))
            if not room:
                return pieces
    return pieces


def _write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
