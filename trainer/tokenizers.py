"""Loads tokenizers exactly as saved."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from trainer.hub import check_files, check_source

# Of what a process writes to; a large tokenizer and a long prompt take 1 GB.
MAX_BYTES = 4 * 2**30
# To load a folder's tokenizer, to render one prompt: of a processor's time, and by the
# clock where a disk or a busy machine is waited for.
MAX_SECONDS, MAX_CLOCK_SECONDS = 10.0, 60.0


def bound_memory() -> None:
    """Bound a process that renders with any model's chat template.

    It is its author's program: a few words of it can ask for all memory.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))


@contextmanager
def bounded_seconds() -> Iterator[None]:
    """Ends this process by a signal if it takes longer.

    Neither a template nor what is written in Rust heeds an exception.
    """
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MAX_CLOCK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def load_bounded(path: str, *, revision: str | None) -> PreTrainedTokenizerBase:
    """Load as `load_tokenizer` does; a hub's may take as long as it takes to come.

    Raises:
        ValueError: as there.
    """
    with bounded_seconds() if os.path.isdir(path) else nullcontext():
        return load_tokenizer(path, revision=revision)


def load_tokenizer(
    path: str, *, revision: str | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model folder or hub id.

    Where there is a tokenizer.json it is taken as it stands: AutoTokenizer may choose
    a class by the model's type instead, whose own rules then override the file's
    (a Qwen2 folder loses a word-level tokenizer's spaces and newlines).

    Raises:
        ValueError: the folder has no tokenizer that can be read, or no hub answers.
    """
    folder = Path(path)
    if not os.path.isdir(folder):
        check_source(path, revision=revision, has_weights=False)
    elif not any(folder.glob("*token*")):
        raise ValueError(
            f"The model folder {path} has no tokenizer (tokenizer.json is missing). "
            "Save the model's tokenizer into it."
        )
    else:
        check_files(folder)
    revision = revision or "main"
    try:
        fast: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
            path, revision=revision
        )
    except (OSError, ValueError, TypeError):
        # Not a fast tokenizer: a model of SentencePiece or vocabulary files.
        pass
    else:
        return fast
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, revision=revision, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"Cannot load the tokenizer of {path}: {first_line(error)}"
        ) from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def decode_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Return what a model wrote, its special tokens and its spaces with it."""
    text = tokenizer.decode(
        list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text


def end_ids(
    tokenizer: PreTrainedTokenizerBase, *, revision: str | None = None
) -> set[int]:
    """Return what ends the model's turns: as Policy does, without its weights."""
    ids, path = {tokenizer.eos_token_id}, tokenizer.name_or_path
    for read in (GenerationConfig.from_pretrained, _read_config):
        with suppress(OSError):
            own = getattr(read(path, revision=revision or "main"), "eos_token_id", None)
            ids |= {own} if isinstance(own, int) else {*(own or ())}
    return ids - {None}


def _read_config(path: str, *, revision: str) -> PreTrainedConfig:
    # Without a warning that it is no known model's.
    tree, _ = PreTrainedConfig.get_config_dict(path, revision=revision)
    return PreTrainedConfig.from_dict(tree)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return tokens that stand for no text, such as the one that ends a completion."""
    added = tokenizer.added_tokens_decoder.items()
    named: set[int] = set(tokenizer.all_special_ids)
    return named | {token_id for token_id, token in added if token.special}


def special_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the same tokens as `special_ids`, as they are decoded."""
    added = tokenizer.added_tokens_decoder.values()
    named = [str(token) for token in tokenizer.all_special_tokens]
    return named + [token.content for token in added if token.special]


def first_line(error: BaseException) -> str:
    """Return what an exception says, without what follows its first line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
