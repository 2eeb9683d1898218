"""How long a worker holds a rescoring, and how often it is heard of."""

from __future__ import annotations

from datetime import timedelta

LEASE = timedelta(seconds=60)
BEAT_SECONDS = 1.0
# Then another team's goes first, from one step to the next.
TURN_SECONDS = 60.0
