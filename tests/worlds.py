"""Rows that the tests of a file share.

They are made once for a file, in a transaction that is rolled back after its last test;
each test has a savepoint in it, and its own objects of the rows. A file with a test
that commits shares nothing: other processes and connections would not see the rows.
"""

from collections.abc import Generator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Model
from pytest_django.plugin import blocking_manager_key

# Files that have a test which commits.
_committing: set[Path] = set()
COMMITTING_FIXTURES = {"transactional_db", "live_server"}


def pytest_collection_finish(session: pytest.Session) -> None:
    _committing.update(item.path for item in session.items if _commits(item))


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test of shared rows has a savepoint, also where no mark says so."""
    names = getattr(item, "fixturenames", ())
    if "shares_rows" in names and item.get_closest_marker("django_db") is None:
        item.add_marker("django_db")


def _commits(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("django_db")
    names = getattr(item, "fixturenames", ())
    return bool(mark and mark.kwargs.get("transaction")) or bool(
        COMMITTING_FIXTURES.intersection(names)
    )


@pytest.fixture(scope="module")
def shares_rows(request, django_db_setup, django_db_blocker) -> Iterator[bool]:
    """Whether the file's fixtures may share rows; if so, in an open transaction."""
    if request.path in _committing:
        yield False
        return
    with django_db_blocker.unblock():
        block = transaction.atomic()
        block._from_testcase = True  # so that durable blocks are allowed, as in a test
        with block:
            yield True
            transaction.set_rollback(True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Give each test its own objects of the shared rows."""
    yield
    assert isinstance(item, pytest.Function)
    memo: dict[int, Any] = {}
    for name, fixtures in item._fixtureinfo.name2fixturedefs.items():
        value = item.funcargs.get(name)
        if fixtures[-1].scope == "module" and _is_rows(value):
            item.funcargs[name] = deepcopy(value, memo)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Refuse the database to a test without its mark, in a file of shared rows too."""
    fixtures = COMMITTING_FIXTURES.union(["db"]).intersection(item.fixturenames)
    if fixtures or item.get_closest_marker("django_db") is not None:
        yield
        return
    with item.config.stash[blocking_manager_key].block():
        yield


def _is_rows(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(part, Model) for part in value)
    return isinstance(value, Model)
