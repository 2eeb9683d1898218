"""Python values as JSON that holds no object: what leaves a call, and what is compared.

JSON as it is for null, booleans, text, lists, floats and whole numbers of up to 15
digits. An object with one key is anything else: n a whole number (hexadecimal), f a
float that is no number, q a fraction, c a complex number, b bytes, t a tuple, s a set,
d the pairs of a dict, and o something that is none of these, with whether it is true.

>>> encode((1, {"a"}))
{"t": [1, {"s": ["a"]}]}
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 40
MAX_VALUES = 50_000
_EXACT = 10**15


def encode(value: object) -> Any:
    """Never raises: what cannot be encoded is something else."""
    try:
        return _Encoder().encode(value, MAX_DEPTH)
    except Exception:  # noqa: BLE001 - its methods may raise anything
        return opaque(value)


def opaque(value: object) -> dict[str, Any]:
    try:
        is_true = bool(value)
    except Exception:  # noqa: BLE001 - as above
        is_true = False
    return {"o": [str(type(value).__name__)[:80], is_true]}


class _Encoder:
    def __init__(self) -> None:
        self._left = MAX_VALUES

    def encode(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if depth == 0 or self._left < 0:
            raise ValueError("too deep or too large")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int | float | complex | Fraction | Decimal):
            return _number(value)
        return self._container(value, depth - 1)

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, list | deque):
            return self._all(value, depth)
        if isinstance(value, tuple):
            return {"t": self._all(value, depth)}
        if isinstance(value, set | frozenset):
            return {"s": self._all(value, depth)}
        if isinstance(value, dict):
            return {"d": [self._all(pair, depth) for pair in value.items()]}
        if isinstance(value, bytes | bytearray):
            return {"b": bytes(value).hex()}
        return opaque(value)

    def _all(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.encode(value, depth) for value in values]


def _number(value: Any) -> Any:
    if isinstance(value, int):
        whole = int(value)
        return whole if abs(whole) < _EXACT else {"n": hex(whole)}
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else {"f": repr(number)}
    if isinstance(value, complex):
        return {"c": [_number(value.real), _number(value.imag)]}
    if isinstance(value, Decimal) and not value.is_finite():
        return {"f": repr(float(value))}
    top, bottom = value.as_integer_ratio()
    return {"q": [hex(top), hex(bottom)]}
