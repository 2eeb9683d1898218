"""Of which metrics more is better, and of which less; of the others neither."""

from __future__ import annotations

import re
from typing import Literal

Direction = Literal["higher", "lower"]

DECLARED: tuple[tuple[str, Direction], ...] = (
    # A rule's score as well; insights look at the sign of its weight.
    (r"reward/([^/]+/)?mean", "higher"),
    (r"eval/[^/]+/(mean|(pass|maj)@\d+)", "higher"),
    (r"eval/[^/]+/frac_truncated", "lower"),
    (r"tokens_per_second", "higher"),
    (r"group/num_effective", "higher"),
    (r"group/(frac_zero_std|frac_all_min)", "lower"),
    (r"completion/frac_truncated", "lower"),
    (r"sampling/frac_dropped", "lower"),
    (r"mismatch/.+", "lower"),
    (r"time/.+", "lower"),
)


def direction_of(metric: str) -> Direction | None:
    """What the best of a metric's values is: its highest, its lowest, or neither.

    Loss, KL, entropy, clipping, norms and lengths are neither: what is good depends.

    >>> direction_of("reward/mean"), direction_of("time/step"), direction_of("entropy")
    ('higher', 'lower', None)
    """
    for pattern, better in DECLARED:
        if re.fullmatch(pattern, metric):
            return better
    return None


def is_score(last_part: str) -> bool:
    """Whether a name that ends so is a mean of scores, or a share of right answers."""
    return last_part == "mean" or last_part.startswith(("pass@", "maj@"))
