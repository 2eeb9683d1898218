"""What truly became of a run's row, by triggers: each change, whose, and together
with what.

It knows nothing of the code under test, so that can be held against it. The database's
clock stands still but where it is moved here: `machine` comes before pg_catalog in each
connection's search path, and has functions of the clock's names.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.backends.signals import connection_created

from tests.dashboard.supervision.machine.actors import current_or_none

SESSION = "SET search_path = machine, pg_catalog, public"
CREATE = """
CREATE SCHEMA machine;
CREATE TABLE machine.clock (moment timestamptz NOT NULL);
INSERT INTO machine.clock VALUES (pg_catalog.now() + interval '1 day');
CREATE FUNCTION machine.statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql
AS $$ SELECT moment FROM machine.clock $$;
CREATE FUNCTION machine.now() RETURNS timestamptz STABLE LANGUAGE sql
AS $$ SELECT moment FROM machine.clock $$;

CREATE TABLE machine.ledger (
    id bigserial PRIMARY KEY,
    tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
    actor int NOT NULL DEFAULT coalesce(current_setting('machine.actor', true), '0')
        ::int,
    run_id bigint NOT NULL,
    kind text NOT NULL,
    body jsonb NOT NULL
);
CREATE FUNCTION machine.note_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO machine.ledger (run_id, kind, body) VALUES (
        NEW.id, 'run', jsonb_build_object(
            'from', OLD.state, 'to', NEW.state, 'epoch_from', OLD.epoch,
            'epoch_to', NEW.epoch, 'seq_from', OLD.seq, 'seq_to', NEW.seq,
            'is_leased', NEW.lease_until IS NOT NULL,
            'has_expired', OLD.lease_until < machine.statement_timestamp()));
    RETURN NULL;
END $$;
CREATE FUNCTION machine.note_event() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO machine.ledger (run_id, kind, body) VALUES (
        NEW.run_id, 'event', jsonb_build_object('seq', NEW.seq));
    RETURN NULL;
END $$;
CREATE FUNCTION machine.note_audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO machine.ledger (run_id, kind, body) VALUES (
        NEW.object_id, 'audit', jsonb_build_object('verb', NEW.verb));
    RETURN NULL;
END $$;
CREATE TRIGGER machine_run AFTER UPDATE ON runs_run
    FOR EACH ROW EXECUTE FUNCTION machine.note_run();
CREATE TRIGGER machine_event AFTER INSERT ON runs_runevent
    FOR EACH ROW EXECUTE FUNCTION machine.note_event();
CREATE TRIGGER machine_audit AFTER INSERT ON accounts_auditentry
    FOR EACH ROW WHEN (NEW.object_type = 'run') EXECUTE FUNCTION machine.note_audit();
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    number: int
    tx: int
    actor: int  # its number; 0 for the machine itself
    run_id: int
    kind: str  # run | event | audit
    body: dict[str, Any]


@contextmanager
def kept() -> Iterator[None]:
    """Triggers on the tables, and the database's clock in our hands."""

    def prepare(connection: Any, **_: Any) -> None:
        connection.connection.execute(SESSION)
        if actor := current_or_none():
            actor.note_session()

    with connection.cursor() as cursor:
        cursor.execute(CREATE)
    connection.close()
    connection_created.connect(prepare)
    try:
        yield
    finally:
        connection_created.disconnect(prepare)
        connection.close()
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA machine CASCADE")


def pass_time(seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE machine.clock SET moment = moment + %s * interval '1 second'",
            [seconds],
        )


def last_number() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(max(id), 0) FROM machine.ledger")
        return int(cursor.fetchone()[0])


def read(*, after: int) -> list[Entry]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, tx::text::bigint, actor, run_id, kind, body::text "
            "FROM machine.ledger WHERE id > %s ORDER BY id",
            [after],
        )
        return [
            Entry(
                number=number,
                tx=tx,
                actor=actor,
                run_id=run,
                kind=kind,
                body=json.loads(body),
            )
            for number, tx, actor, run, kind, body in cursor.fetchall()
        ]
