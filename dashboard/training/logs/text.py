"""A line of a log as a page may show it: no control codes, no hidden characters."""

from __future__ import annotations

import re

# Colours, cursor moves (CSI), titles and links (OSC), and the short escapes.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if code != 0x09}
_DELETE = {0x7F: "\u2421"}
# C1 controls and what turns or hides text are written out, as \u202e.
_HIDDEN = [
    *range(0x80, 0xA0),
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    0x061C,
    0xFEFF,
]
_SHOWN: dict[int, int | str] = {
    **_CONTROLS,
    **_DELETE,
    **{code: f"\\u{code:04x}" for code in _HIDDEN},
}


def show_line(raw: bytes) -> str:
    """Only what follows the last carriage return: a progress bar's last state."""
    text = raw.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
    return _ESCAPES.sub("", text).translate(_SHOWN)
