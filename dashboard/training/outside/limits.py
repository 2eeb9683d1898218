"""How much an outside trainer may send."""

from __future__ import annotations

from datetime import timedelta

# A reporter that has nothing to tell says so every 30 s.
SILENCE = timedelta(minutes=5)
MAX_STEP = 2**31 - 1
MAX_LINES = 5_000  # of one batch
MAX_LINE_BYTES = 16 * 2**20
MAX_BATCH_BYTES = 32 * 2**20  # unzipped
MAX_COMPLETIONS = 1_024  # of one group
MAX_METRICS = 2_000  # names, of one run
MAX_RULES = 64
MAX_SETTINGS_BYTES = 64 * 2**10
