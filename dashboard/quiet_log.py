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
# PostgreSQL shows the row that it refuses, which may be a prompt or a completion, with
# its newlines. What it goes on with has two spaces; a prompt may well say "\nHINT: ".
END = (
    r"\n(?:HINT|QUERY|CONTEXT|LOCATION):  |\nTraceback \(most recent call last\):"
    r"|\n\nThe above exception was the direct|\n\nDuring handling of the above|\Z"
)
ROW = re.compile(
    r"(Failing row contains |COPY \w+, line \d+[^:\n]{0,200}: |JSON data, line \d+: )"
    rf".*?(?={END})",
    re.DOTALL,
)
VALUE = re.compile(
    r"(Key \([^\n]{0,500}?\)=\().*?"
    r"(?=\) (?:already exists|is (?:not present in|still referenced from)"
    rf" table \"[^\"\n]*\")\.(?:{END})|{END})",
    re.DOTALL,
)


def quieten(text: str) -> str:
    """
    >>> quieten("GET /sign-in/4f1c/ failed")
    "GET /sign-in/…/ failed"
    """
    for pattern in (TOKEN, KEYS, ROW, VALUE):
        text = pattern.sub(r"\1…", text)
    return PASSWORD.sub(r"\1…@", text)
