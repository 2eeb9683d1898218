"""Arguments of the operators' commands: names that are looked up in the database."""

from __future__ import annotations

from argparse import ArgumentTypeError

from django.core.management.base import CommandError

from dashboard.accounts.models import User


def name(text: str) -> str:
    """Return a name as the database may have it; files may be named otherwise."""
    if not text.isprintable():
        raise ArgumentTypeError(
            f"{ascii(text)[:60]} is not a valid name: it has unprintable "
            "characters or is not UTF-8."
        )
    return text


def find_person(username: str) -> User:
    person = User.objects.filter(username=username).first()
    if person is None:
        raise CommandError(f"User {username!r} not found.")
    return person
