"""A group's token values: packed, unpacked, or why there are none.

Compressed by zlib: the length of a head in bytes ("<I"), the head as JSON, then columns
over all tokens of the group, completion after completion, little-endian: the index of
each token in the head's vocabulary, then each column of the head, NaN or ABSENT for
missing values. float32 preserves the five digits of the log.

    {"lengths": [500, 312], "columns": ["logprob", …],
     "vocabulary": [[17, " so", 0], …]}
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from django.db.models import F
from django.db.models.functions import Abs
from numpy.typing import NDArray

from dashboard.completions.models import Group, GroupTokens
from dashboard.runs.models import Run
from dashboard.runs.queue.messages import ordinal
from trainer.config import LoggingConfig
from trainer.events import MeasuredCompletion

NUMBERS = (
    "logprob",
    "old_logprob",
    "sampling_logprob",
    "teacher_logprob",
    "entropy",
    "kl",
    "ratio",
    "advantage",
    "coefficient",
)
CLIPPED = "clipped"
COLUMNS = (*NUMBERS, CLIPPED)
INDEX, NUMBER, SIGN = np.dtype("<u4"), np.dtype("<f4"), np.dtype("i1")
ABSENT = -128  # of a sign
HEAD_LENGTH = struct.Struct("<I")


def pack_tokens(completions: Sequence[MeasuredCompletion]) -> bytes:
    vocabulary: dict[tuple[int, str, int], int] = {}
    indices = [
        vocabulary.setdefault(token, len(vocabulary))
        for completion in completions
        for token in _tokens(completion)
    ]
    columns = [
        name
        for name in COLUMNS
        if any(getattr(completion, name) is not None for completion in completions)
    ]
    text = json.dumps(
        {
            "lengths": [len(completion.ids) for completion in completions],
            "columns": columns,
            "vocabulary": list(vocabulary),
        },
        separators=(",", ":"),
    ).encode()
    parts = [HEAD_LENGTH.pack(len(text)), text, np.array(indices, INDEX).tobytes()]
    parts += [_pack_column(completions, name) for name in columns]
    return zlib.compress(b"".join(parts))


def _tokens(completion: MeasuredCompletion) -> Iterator[tuple[int, str, int]]:
    special = set(completion.special)
    for at, (token_id, text) in enumerate(
        zip(completion.ids, completion.pieces, strict=True)
    ):
        yield token_id, text, int(at in special)


def _pack_column(completions: Sequence[MeasuredCompletion], name: str) -> bytes:
    values = chain.from_iterable(
        [None] * len(completion.ids)
        if getattr(completion, name) is None
        else getattr(completion, name)
        for completion in completions
    )
    if name == CLIPPED:
        return np.fromiter(
            (ABSENT if value is None else value for value in values), SIGN
        ).tobytes()
    numbers = np.fromiter((math.nan if v is None else v for v in values), np.float64)
    with np.errstate(over="ignore"):  # too large for float32: shown as missing
        return numbers.astype(NUMBER).tobytes()


def unpack_columns(packed: bytes) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
    """Unpack the lengths of the completions, and the columns over all their tokens;
    NaN for missing values.
    """
    head, columns = _unpack(packed)
    numbers = {
        name: values.astype(np.float64)
        for name, values in columns.items()
        if name in NUMBERS
    }
    return head["lengths"], numbers


def _unpack(packed: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Unpack the head, and the columns with "indices" into its vocabulary."""
    data = zlib.decompress(packed)
    (length,) = HEAD_LENGTH.unpack_from(data)
    at = HEAD_LENGTH.size
    head = json.loads(data[at : at + length])
    at += length
    count = sum(head["lengths"])
    columns: dict[str, NDArray[Any]] = {}
    for name in ("indices", *head["columns"]):
        kind = INDEX if name == "indices" else SIGN if name == CLIPPED else NUMBER
        columns[name] = np.frombuffer(data, kind, count, at)
        at += count * kind.itemsize
    return head, columns


def unpack_tokens(packed: bytes) -> list[dict[str, Any]]:
    """Unpack the lists of each completion; None for missing ones."""
    head, columns = _unpack(packed)
    ends = list(np.cumsum([0, *head["lengths"]]))
    tokens = [head["vocabulary"][index] for index in columns["indices"].tolist()]
    return [
        {
            "position": position,
            "ids": [token_id for token_id, _, _ in tokens[begin:end]],
            "pieces": [text for _, text, _ in tokens[begin:end]],
            "special": [is_special for _, _, is_special in tokens[begin:end]],
            **{
                name: _read_column(columns[name][begin:end])
                if name in columns
                else None
                for name in COLUMNS
            },
        }
        for position, (begin, end) in enumerate(pairwise(ends))
    ]


def _read_column(values: NDArray[Any]) -> list[float | None] | None:
    if values.dtype == SIGN:
        read = [None if value == ABSENT else value for value in values.tolist()]
    else:
        read = [
            float(f"{value:.5g}") if math.isfinite(value) else None
            for value in values.tolist()
        ]
    return None if (bool(read) and all(value is None for value in read)) else read


def read_tokens(group: Group) -> list[dict[str, Any]] | None:
    """Read tokens of each completion; None if not stored. One query."""
    packed = (
        GroupTokens.objects.filter(group=group).values_list("packed", flat=True).first()
    )
    return None if packed is None else unpack_tokens(bytes(packed))


def find_near(group: Group) -> Group | None:
    """Find the nearest group with token values, by step, then by prompt."""
    kept = Group.objects.current().filter(run_id=group.run_id, tokens__isnull=False)
    near = [Abs(F("step") - group.step), Abs(F("prompt_index") - group.prompt_index)]
    return kept.only("step", "prompt_index").order_by(*near, "pk").first()


def which_are_kept(run: Run) -> str:
    """Say which groups of the run have token values."""
    if run.is_external:
        return f"{run.imported_from} sent no token values of this group."
    if run.is_imported:
        return f"Runs imported from {run.imported_from} have no token values."
    # Phases cannot change this part.
    logging = LoggingConfig.model_validate(run.config["logging"], extra="ignore")
    if logging.token_groups == 0:
        return "This run stores no token values: logging.token_groups is 0."
    groups = (
        "1 group" if logging.token_groups == 1 else f"{logging.token_groups} groups"
    )
    every = logging.tokens_every_steps
    steps = "every step" if every == 1 else f"the first and every {ordinal(every)} step"
    return (
        f"This run stores token values for {groups} of {steps} (logging.token_groups, "
        "logging.tokens_every_steps). This group has none."
    )
