"""Dealing a batch's micro-batches to the processes that go through them together."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Hand:
    """What one process gets."""

    places: list[int] = field(default_factory=list)
    filler: int | None = None  # another's, taken along to keep step


def deal(num_parts: int, *, num_hands: int) -> list[Hand]:
    """Deal so that all hands have equally many.

    Every pass through the model is one of all processes, which send one another weights
    and gradients layer by layer. So they wait for the slowest in each round, and a
    process with fewer micro-batches would leave the others waiting for ever. The parts
    come longest first: a round has such as are alike, and the hand that began one ends
    the next. A hand left one short takes the last part, the shortest, as a filler.

    >>> [(hand.places, hand.filler) for hand in deal(5, num_hands=2)]
    [([0, 3, 4], None), ([1, 2], 4)]
    """
    hands = [Hand() for _ in range(num_hands)]
    for first in range(0, num_parts, num_hands):
        places = range(first, min(first + num_hands, num_parts))
        is_there_and_back = first // num_hands % 2 == 1
        for hand, place in zip(
            hands[::-1] if is_there_and_back else hands, places, strict=False
        ):
            hand.places.append(place)
    most = max(len(hand.places) for hand in hands)
    for hand in hands:
        if len(hand.places) < most:
            hand.filler = num_parts - 1
    return hands
