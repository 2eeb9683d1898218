"""Loading what a command needs, of which torch and transformers are the most."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType


def load_module(name: str) -> ModuleType:
    """Import it, without looking for garbage in what modules make: that stays.

    To go through half a million objects again and again as there come more took a fifth
    of a trainer's start. From then on they are left out of each look for garbage.
    """
    if name in sys.modules:
        return sys.modules[name]
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
