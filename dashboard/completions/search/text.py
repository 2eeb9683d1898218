"""Finds completions by a substring or by words.

Bits for each three characters in a row say which may hold it: a block keeps `num_bits`
rows of bits, a bit a completion. A trigram's hash names three rows, in which the bits
of the completions that hold it are set, beside those of others: a Bloom filter a
completion, stored by its bits. So the completions that may hold a text are those whose
bits are set in the rows of all its trigrams; whether they do is seen in the text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from django.db import OperationalError
from numpy.typing import NDArray
from psycopg.errors import QueryCanceled

from dashboard.completions.search.blocks import BlocksChanged, read_parts
from dashboard.completions.search.columns import Column
from dashboard.completions.search.filters import Locations, Ranking, Selection, join
from dashboard.project.database import fetch_all

Bits = NDArray[np.uint8]
Codes = NDArray[np.uint64]

# With 5 to 10 rows a trigram, and three of them set, one in 20 to 80 of other texts is
# not ruled out by a trigram.
ROWS_A_TRIGRAM = 5
ROW_SHIFTS = np.array([0, 21, 42], np.uint64)  # of a hash, where each row's bits begin
FEWEST_BITS, MOST_BITS = 2**8, 2**15
MOST_SAMPLED = 512
TEXTS_AT_ONCE = 256  # a multiple of 8, as bits are packed

FEWEST_AT_ONCE, FIRST_BATCH, LARGEST_BATCH = 32, 256, 4_096
AT_ONCE, MOST_NEEDED = 4, 16  # trigrams
FEW = 4_096  # candidates that are searched quickly
AHEAD = 16_384  # ranks that are computed at once
PHRASE = re.compile(r" <(?:-|\d+)> ")
LEXEME = re.compile(r"'((?:[^']|'')*)'")
HAS_TEXT = "strpos(lower(completion.text), lower(%s)) > 0"
HAS_WORDS = "to_tsvector('simple', completion.text) @@ %s::tsquery"


# By index, group by group, so that the texts of each are unpacked once: left to itself,
# the planner looks into all texts of a small table first.
MATCHES = """
SELECT sampled.indices[array_position(sampled.positions, completion.number::int - 1)]
       AS place
  FROM (SELECT group_id, array_agg(position) AS positions, array_agg(place) AS indices
          FROM unnest(%s::bigint[], %s::int[]) WITH ORDINALITY
               AS each(group_id, position, place)
         GROUP BY group_id) sampled
 CROSS JOIN LATERAL (
       SELECT texts FROM samples_groupcompletions
        WHERE group_id = sampled.group_id OFFSET 0) packed
 CROSS JOIN LATERAL unnest(packed.texts) WITH ORDINALITY AS completion(text, number)
 WHERE completion.number::int - 1 = ANY(sampled.positions) AND {condition}
 ORDER BY place
"""


def fold(text: str) -> str:
    """Like PostgreSQL's lower(), as far as it matters here."""
    # Python makes two characters of this one, PostgreSQL one.
    return text.replace("İ", "i").lower()


def needed_trigrams(text: str) -> Codes:
    """Hashes of the trigrams of every text that contains this one.

    Cased letters outside ASCII do not count: their case folding depends on the
    PostgreSQL version.
    """
    folded = fold(text)
    codes = _codes(folded)
    if len(codes) < 3:
        return codes[:0]
    is_sure = np.array([c.isascii() or c.lower() == c.upper() for c in folded])
    sure = is_sure[:-2] & is_sure[1:-1] & is_sure[2:]
    return np.unique(_hash(codes)[sure])


def rows_of(hashes: Codes, num_bits: int) -> NDArray[np.int64]:
    """[hashes, 3]"""
    return ((hashes[:, None] >> ROW_SHIFTS) & np.uint64(num_bits - 1)).astype(np.int64)


def choose_num_bits(texts: Sequence[str]) -> int:
    """Choose a power of two, from how many trigrams such texts have."""
    sampled = texts[:: max(1, len(texts) // MOST_SAMPLED)]
    num_trigrams = [len(np.unique(_hash(_codes(fold(t))))) for t in sampled]
    target = ROWS_A_TRIGRAM * (sum(num_trigrams) / max(1, len(sampled)))
    return int(min(max(2 ** int(np.ceil(np.log2(target + 1))), FEWEST_BITS), MOST_BITS))


def sign(texts: Sequence[str], num_bits: int) -> Bits:
    """[num_bits, texts / 8]; the first text's bit is the highest of its byte."""
    signed = np.zeros((num_bits, -(-len(texts) // 8)), np.uint8)
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        some = [fold(text) for text in texts[first : first + TEXTS_AT_ONCE]]
        # [texts, num_bits], each 0 or 1.
        bits = np.zeros(len(some) * num_bits, np.uint8)
        owners = np.repeat(np.arange(len(some)), [len(text) for text in some])
        codes = _codes("".join(some))
        if len(codes) > 2:
            is_whole = owners[:-2] == owners[2:]
            begins = owners[:-2][is_whole] * num_bits
            for rows in rows_of(_hash(codes)[is_whole], num_bits).T:
                bits[begins + rows] = 1
        packed = np.packbits(bits.reshape(len(some), num_bits), axis=0).T
        signed[:, first // 8 : first // 8 + packed.shape[1]] = packed
    return signed


def _codes(text: str) -> Codes:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(
        np.uint64
    )


def _hash(codes: Codes) -> Codes:
    """Hash each three in a row, which 63 bits hold."""
    if len(codes) < 3:
        return np.empty(0, np.uint64)
    return mix(codes[:-2] << np.uint64(42) | codes[1:-1] << np.uint64(21) | codes[2:])


def mix(keys: Codes) -> Codes:
    """Mix the bits of each as splitmix64 does it (Steele, Lea and Flood 2014)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFilter:
    """`needles`: a matching text contains all strings of one of these lists."""

    condition: str
    given: tuple[str, ...]
    needles: tuple[tuple[str, ...], ...]
    pattern: re.Pattern[str] | None  # what is found of it; None: only left-out words


def text_filter(text: str, *, by_words: bool) -> TextFilter:
    """Build the condition; by words: one query, no match if the text has no word."""
    if not by_words:
        return TextFilter(
            condition=HAS_TEXT,
            given=(text,),
            needles=((text,),),
            pattern=re.compile(re.escape(text), re.IGNORECASE),
        )
    ((query,),) = fetch_all("SELECT websearch_to_tsquery('simple', %s)::text", [text])
    needles = tuple(_needles(part) for part in query.split(" | "))
    conditions, parameters = [HAS_WORDS], [query]
    if len(needles) == 1:
        # A substring test first costs a tenth of a word search.
        conditions = [HAS_TEXT] * len(needles[0]) + conditions
        parameters = [*needles[0], query]
    words = (word for group in needles for word in group)
    pattern = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
    return TextFilter(
        condition=" AND ".join(conditions),
        given=tuple(parameters),
        needles=needles,
        pattern=re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE) if pattern else None,
    )


EXCERPT_CHARS, LEAD_CHARS = 600, 80


def excerpt(text: str, pattern: re.Pattern[str] | None) -> list[tuple[str, bool]]:
    """Around the first match: pieces, and whether each is a match.

    >>> excerpt("a cat", re.compile("CAT", re.I))
    [('a ', False), ('cat', True)]
    """
    first = pattern.search(text) if pattern else None
    start = (
        first.start() - LEAD_CHARS if first and first.start() > 2 * LEAD_CHARS else 0
    )
    excerpt_ = text[start : start + EXCERPT_CHARS]
    pieces, end = [("…", False)] if start else [], 0
    for match in pattern.finditer(excerpt_) if pattern else ():
        pieces += [(excerpt_[end : match.start()], False), (match[0], True)]
        end = match.end()
    pieces.append((excerpt_[end:], False))
    if start + EXCERPT_CHARS < len(text):
        pieces.append(("…", False))
    return [piece for piece in pieces if piece[0]]


def _needles(part: str) -> tuple[str, ...]:
    """List the required words of words joined by "and".

    >>> _needles("'not' & !'a' & 'one' <-> 'two'")
    ('not', 'one', 'two')
    """
    terms = [term for term in part.split(" & ") if not term.startswith("!")]
    lexemes = [
        match[1]
        for word in [word for term in terms for word in PHRASE.split(term)]
        if (match := LEXEME.search(word))
    ]
    return tuple(lexeme.replace("''", "'").replace("\\\\", "\\") for lexeme in lexemes)


def filter_candidates(
    selections: Sequence[Selection], query: TextFilter, *, until: float
) -> list[Selection]:
    """Completions with the trigrams of the text; a query per four trigrams, plus one.

    Rare trigrams first; the others only if many candidates are left and time allows.
    """
    signed = [selection for selection in selections if selection.block.num_bits]
    hashes = [
        [needed_trigrams(n) for n in alternative] for alternative in query.needles
    ]
    needed = [np.unique(np.concatenate([*parts, NO_HASHES])) for parts in hashes]
    if not signed or any(not len(hashes_needed) for hashes_needed in needed):
        return list(selections)
    rarest = _rarest_first(signed[-1], needed)
    candidates = _narrow_by_trigrams(
        selections, [hashes[:AT_ONCE] for hashes in rarest]
    )
    if len(rarest) == 1:
        for first in range(AT_ONCE, min(len(rarest[0]), MOST_NEEDED), AT_ONCE):
            are_few = sum(candidate.count for candidate in candidates) <= FEW
            if are_few or time.monotonic() >= until:
                break
            candidates = _narrow_by_trigrams(
                candidates, [rarest[0][first : first + AT_ONCE]]
            )
    return candidates


def _rarest_first(probed: Selection, needed: Sequence[Codes]) -> list[Codes]:
    """Order by frequency in this block: rare trigrams exclude most."""
    if all(len(trigrams) <= AT_ONCE for trigrams in needed):
        return list(needed)
    ordered = []
    for hashes in needed:
        rows = rows_of(hashes, probed.block.num_bits)
        bits = _read_rows([probed], [(0, row) for row in rows.ravel().tolist()])
        of_hashes = np.reshape(bits, (*rows.shape, -1))
        common = np.bitwise_count(np.bitwise_and.reduce(of_hashes, axis=1))
        ordered.append(hashes[np.argsort(common.sum(axis=1, dtype=np.int64))])
    return ordered


def _narrow_by_trigrams(
    selections: Sequence[Selection], alternatives: Sequence[Codes]
) -> list[Selection]:
    """Completions with all trigrams of an alternative."""
    signed = [selection for selection in selections if selection.block.num_bits]
    rows = [
        (place, alternative, row)
        for place, selection in enumerate(signed)
        for alternative, hashes in enumerate(alternatives)
        for row in np.unique(rows_of(hashes, selection.block.num_bits)).tolist()
    ]
    bits = _read_rows(signed, [(place, row) for place, _, row in rows])
    joined: dict[int, dict[int, Column]] = {place: {} for place in range(len(signed))}
    for (place, alternative, _), row_bits in zip(rows, bits, strict=True):
        rows_ = joined[place].get(alternative)
        joined[place][alternative] = row_bits if rows_ is None else rows_ & row_bits
    masks = {
        id(selection.block): _unpack(selection, list(joined[place].values()))
        for place, selection in enumerate(signed)
    }
    narrowed = [
        selection.narrow(masks[id(selection.block)])
        if selection.block.num_bits
        else selection
        for selection in selections
    ]
    return [
        selection
        for selection in narrowed
        if selection.mask is None or selection.mask.any()
    ]


NO_HASHES = np.empty(0, np.uint64)


def _unpack(selection: Selection, alternatives: Sequence[Column]) -> Column:
    bits = np.unpackbits(np.bitwise_or.reduce(alternatives))
    mask: Column = bits[selection.low : selection.high].astype(bool)
    return mask


def _read_rows(
    selections: Sequence[Selection], rows: Sequence[tuple[int, int]]
) -> list[Column]:
    """Rows of bits; each is (index of the block, row)."""
    blocks = [selection.block for selection in selections]
    sizes = [-(-block.num_completions // 8) for block in blocks]
    parts = [
        (blocks[place].pk, row * sizes[place], sizes[place]) for place, row in rows
    ]
    columns = read_parts("signatures", parts) if parts else {}
    if len(columns) < len(parts):
        raise BlocksChanged
    return [np.frombuffer(columns[i], np.uint8) for i in range(len(parts))]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextMatches:
    """Matches among the candidates of ranks `start` … `end` - 1."""

    found: Locations
    ranks: Column
    start: int
    end: int


def search_texts(
    ranking: Ranking, query: TextFilter, *, start: int, until: float
) -> TextMatches:
    """Search the texts in order, until `time.monotonic()` is `until`.

    Searches at least one batch, so that a continued search advances.
    """
    parts, ranks = [ranking.stretch(0, 0)], [np.empty(0, np.int64)]
    rank, size = start, FIRST_BATCH
    ahead, ahead_from = ranking.stretch(start, start + AHEAD), start
    while rank < len(ranking):
        if rank >= ahead_from + len(ahead):
            ahead, ahead_from = ranking.stretch(rank, rank + AHEAD), rank
        batch = ahead.take(slice(rank - ahead_from, rank - ahead_from + size))
        began = time.monotonic()
        indices = _match(batch, query)
        if indices is None:
            break
        parts.append(batch.take(indices))
        ranks.append(indices + rank)
        rank += len(batch)
        now = time.monotonic()
        if now >= until:
            break
        in_time = int(len(batch) * (until - now) / max(now - began, 1e-6))
        size = max(FEWEST_AT_ONCE, min(2 * size, LARGEST_BATCH, in_time))
    return TextMatches(
        found=join([part for part in parts if len(part)]),
        ranks=np.concatenate(ranks),
        start=start,
        end=rank,
    )


def selections_of(locations: Locations) -> list[Selection]:
    selections = []
    for row in np.unique(locations.rows):
        block = locations.blocks[row]
        mask = np.zeros(block.num_completions, bool)
        mask[locations.indices[locations.rows == row]] = True
        selections.append(
            Selection(block=block, low=0, high=block.num_completions, mask=mask)
        )
    return sorted(
        selections, key=lambda selection: int(selection.block.steps["step"][0])
    )


def _match(batch: Locations, query: TextFilter) -> Column | None:
    """Return the indices of matches in the batch; None: the statement timed out."""
    groups, positions = batch.in_groups()
    parameters = [groups.tolist(), positions.tolist(), *query.given]
    try:
        rows = fetch_all(MATCHES.format(condition=query.condition), parameters)
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled):
            return None
        raise
    return np.array([place - 1 for (place,) in rows], np.int64)
