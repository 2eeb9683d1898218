"""`python -m trainer preview`: rows as a model sees them, or what an environment says.

Requests and replies are lines of JSON. The first line of output is `{}` once the
tokenizer is loaded, or `{"problem": "…"}`. Then, for each line such as

    {"index": 0, "row": {"prompt": "3+4?", "answer": "7", "columns": {}}, "data": {…}}

where `data` are settings of DataConfig, it writes either a problem or

    {"pieces": [["<s>", true], ["3+4?", false]], "last_pieces": [], …}

A piece is the text of consecutive tokens, and whether it is a special token. With
`"environment": {…}, "seed": 0`, settings of EnvironmentConfig, the row is rendered as
its episodes begin, and the answer says why there can be none. Without a model, a line
has `environment`, `said`, `seconds` and `owner` in place of `data`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from transformers import PreTrainedTokenizerBase

from trainer.config import DataConfig, EnvironmentConfig
from trainer.data import PromptRenderer, Row
from trainer.rewards.judge import limited_to
from trainer.rewards.sandbox.pool import asking_for
from trainer.rollout.environments import EnvironmentFailed, Said, environment_seed
from trainer.tokenizers import (
    bound_memory,
    bounded_seconds,
    decode_text,
    end_ids,
    first_line,
    load_bounded,
    special_ids,
)
from trainer.types import ToolCall

# Of a long prompt, whose middle is left out: its end is where the completion begins.
SHOWN_FIRST, SHOWN_LAST = 1_500, 500
SHOWN_CHARS = 200_000  # of either end; one token of a tokenizer may be of any length
IDLE_SECONDS = 60  # without a request, until the process ends


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Render prompts as a run does. Reads rows and settings as JSON lines from "
        "stdin; writes one JSON line per row with the prompt's pieces and its number "
        "of tokens, or the error. Without a model, replies as an environment."
    )
    parser.add_argument("--model", help="model folder or Hugging Face model ID")
    parser.add_argument(
        "--revision", help=("branch, tag or commit of a Hugging Face model")
    )


def main(options: argparse.Namespace) -> int:
    tokenizer = None
    if options.model:
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
                question = json.loads(line)
                answered = answer(tokenizer, question) if tokenizer else play(question)
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
    row, facts = _read_row(question), dict[str, Any]()
    try:
        config = DataConfig.model_validate({**question["data"], "rows": "stdin"})
        if question.get("environment"):
            renderer, facts = _prepare_episodes(tokenizer, config, row, question)
        else:
            renderer = PromptRenderer(tokenizer, config)
        token_ids = renderer.token_ids(row)
    except ValueError as error:
        return {"problem": str(error), **facts}
    except MemoryError as error:
        return {"problem": f"The prompt needs too much memory: {first_line(error)}"}
    return {
        **facts,
        "pieces": cut_up(tokenizer, token_ids[:SHOWN_FIRST]),
        # What is left out lies between these two.
        "last_pieces": cut_up(
            tokenizer, token_ids[max(SHOWN_FIRST, len(token_ids) - SHOWN_LAST) :]
        ),
        "num_tokens": len(token_ids),
        "num_unknown": _num_unknown(tokenizer, token_ids),
        "num_left_out": max(0, len(token_ids) - SHOWN_FIRST - SHOWN_LAST),
    }


def _read_row(question: dict[str, Any]) -> Row:
    prompt = question["row"]["prompt"]
    return Row(
        index=question["index"],
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        answer=question["row"]["answer"],
        columns=question["row"]["columns"],
    )


def play(question: dict[str, Any]) -> dict[str, Any]:
    """Return an environment's tools and opening, and its reply to the turns so far.

    A problem is one of the source, or of this reply.
    """
    # Previews of single turns need not wait for this.
    from trainer.rollout.episodes import make_environment  # noqa: PLC0415

    row = _read_row(question)
    said = [
        Said(
            text=turn["text"],
            content=turn["text"],
            calls=tuple(ToolCall(**call) for call in turn["calls"]),
        )
        for turn in question["said"]
    ]
    config = EnvironmentConfig.model_validate(question["environment"])
    begin = time.monotonic()
    try:
        with limited_to(question["seconds"]), asking_for(question["owner"]):
            environment = make_environment(config)
            assert environment
            seed = environment_seed(0, row)
            played = {
                "tools": [tool["function"]["name"] for tool in environment.tools],
                "opening": environment.open(row, seed),
            }
            if said:
                begin = time.monotonic()
                played |= asdict(environment.reply(row, seed, said))
    except EnvironmentFailed as error:
        return {"problem": str(error)}
    except ValueError as error:
        return {"problem": str(error), "is_source": True}
    return played | {"seconds": time.monotonic() - begin}


def _prepare_episodes(
    tokenizer: PreTrainedTokenizerBase,
    config: DataConfig,
    row: Row,
    question: dict[str, Any],
) -> tuple[PromptRenderer, dict[str, Any]]:
    """Return what renders the prompts of episodes, and why there can be none."""
    # Most previews are of single turns and need not wait for these.
    from trainer.rollout.episodes import (  # noqa: PLC0415
        chat_of,
        make_environment,
        make_renderer,
    )

    settings = EnvironmentConfig.model_validate(question["environment"])
    environment = make_environment(settings)
    assert environment
    chat = chat_of(tokenizer, config, environment, row)
    refusals = chat.check(end_ids(tokenizer))
    return make_renderer(tokenizer, config, settings, seed=int(question["seed"])), {
        "refusals": refusals,
        "drops_thinking": not refusals and chat.drops_thinking,
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
