"""Keeps out of the log what lets somebody in, and what models and people wrote."""

from __future__ import annotations

import re

# Tokens that stand in addresses.
TOKEN = re.compile(r"(/(?:public|sign-in|invitation|confirm-email|reset/key)/)[^/\s?]+")
# Keys of programs, and passwords in addresses of servers.
KEYS = re.compile(
    r"(\b[Bb]earer\s+(?=[\w~+/.=-]{8})|\bcohort_(?=[\w-]{40}))[\w~+/.=-]+"
)
PASSWORD = re.compile(r"(\b[a-z][a-z0-9+]*://[^\s:/@]*:)[^\s@/]+@")
# PostgreSQL shows the row that it refuses, which may be a prompt or a completion.
ROW = re.compile(
    r"(Failing row contains |COPY \w+, line \d+[^:\n]*: |JSON data, line \d+: ).*"
)


def quieten(text: str) -> str:
    """
    >>> quieten("GET /sign-in/4f1c/ failed")
    "GET /sign-in/…/ failed"
    """
    for pattern in (TOKEN, KEYS, ROW):
        text = pattern.sub(r"\1…", text)
    return PASSWORD.sub(r"\1…@", text)
