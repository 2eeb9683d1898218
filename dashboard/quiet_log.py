"""Keeps what lets somebody in out of the log: tokens that stand in addresses."""

from __future__ import annotations

import logging
import re

TOKEN = re.compile(r"(/(?:public|sign-in|invitation|confirm-email|reset/key)/)[^/\s?]+")


class WithoutTokens(logging.Filter):
    """Django names the address of each request that failed."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                TOKEN.sub(r"\1…", arg) if isinstance(arg, str) else arg
                for arg in record.args
            )
        return True
