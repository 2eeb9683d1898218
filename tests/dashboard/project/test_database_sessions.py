"""What a statement, a lock and an idle transaction may take, as PostgreSQL has it."""

import sys

import pytest

from tests.environment import run_here

SHOWN = """
import {module}
from django.db import connection
with connection.cursor() as cursor:
    for name in ("statement", "lock", "idle_in_transaction_session"):
        cursor.execute(f"SHOW {{name}}_timeout")
        print(*cursor.fetchone())
"""


@pytest.mark.parametrize(
    ("module", "statement"), [("dashboard.celery", "2min"), ("dashboard.asgi", "15s")]
)
@pytest.mark.django_db(transaction=True)
def test_sessions_of_a_process_are_bounded(module, statement, app_environment):
    shown = run_here(
        *(sys.executable, "-c"),
        SHOWN.format(module=module),
        env=app_environment,
        check=True,
    )

    assert shown.stdout.split() == [statement, "3s", "1min"]
