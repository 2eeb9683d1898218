"""Errors of Python and libraries are replaced by our own messages.

tests/inputs/endpoints asks the same of all that comes in by any door.
"""

import errno
import http.client
import io
import smtplib
import socket
import ssl
import zipfile
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.db import connection, transaction
from django.utils import timezone

from dashboard.accounts.members import change_role
from dashboard.accounts.models import Membership, Role
from dashboard.project.mail import why_not_mailed
from dashboard.rewards.recipe_text import read_json
from dashboard.runs.attributes import describe_run
from dashboard.runs.config.toml import read_phases, read_toml
from dashboard.runs.models import Run
from dashboard.transfers.import_files import unpack
from dashboard.transfers.models import RunImport
from tests.dashboard.api.test_replays_at_once import (
    wait_for_a_blocked_lock,
)
from tests.dashboard.completions.factories import make_run
from tests.inputs.cases import LIBRARIES
from trainer.config.reading import read_config
from trainer.internet import why_unreachable

BOM = "\ufeff"
DIGITS, DEEP = "9" * 5_000, 100_000
TEXTS = {
    "digits": f"seed = {DIGITS}\n",
    "digits of JSON": f'{{"seed": {DIGITS}}}',
    "deep": "seed = " + "[" * DEEP,
    "deep JSON": "[" * DEEP,
    "a date that is none": "seed = 2026-13-45\n",
    "no TOML": "seed\n",
    "nothing of JSON": BOM + "{",
}


@pytest.mark.parametrize("of", TEXTS)
def test_unreadable_input_has_our_own_error(of, tmp_path):
    text, messages = TEXTS[of], []
    for read in (read_toml, read_json, read_phases):
        with pytest.raises(ValueError, match=r"\w") as refused:
            read(text)
        messages.append(str(refused.value))
    for suffix in ("toml", "json"):
        path = tmp_path / f"run.{suffix}"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"\w") as refused:
            read_config(path)
        messages.append(str(refused.value))
        path.write_bytes(b"\xff\xfe" + text.encode())
        with pytest.raises(ValueError, match=r"\w") as refused:
            read_config(path)
        messages.append(str(refused.value))

    assert [m for m in messages if LIBRARIES.search(m)] == []


def test_a_byte_order_mark_is_skipped(tmp_path):
    text = f"{BOM}[optim]\r\nnum_steps = 7\r\n"

    assert read_toml(text) == {"optim": {"num_steps": 7}}
    assert read_json(f'{BOM}{{"a": 1}}') == {"a": 1}
    assert read_phases(f'{BOM}[[phases]]\nname = "a"\n') == [{"name": "a"}]
    path = tmp_path / "run.toml"
    path.write_text(f"{text}colour = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="colour"):
        read_config(path)


NETWORK = (
    socket.gaierror(-2, "Name or service not known"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    TimeoutError(),
    OSError(errno.EHOSTUNREACH, "No route to host"),
    OSError(),
    ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
    http.client.BadStatusLine("x"),
    http.client.IncompleteRead(b""),
    http.client.RemoteDisconnected("Remote end closed connection"),
)


@pytest.mark.parametrize("error", NETWORK, ids=lambda error: type(error).__name__)
def test_each_network_error_has_its_own_message(error):
    message = why_unreachable(error)

    assert type(error).__name__ not in message
    assert not LIBRARIES.search(message)
    assert ". " in message  # what happened, and what to do


MAIL = (
    smtplib.SMTPAuthenticationError(535, b"no"),
    smtplib.SMTPRecipientsRefused({}),
    smtplib.SMTPSenderRefused(550, b"no", "a@b"),
    smtplib.SMTPDataError(554, b"no"),
    smtplib.SMTPServerDisconnected("gone"),
    socket.gaierror(-2, "Name or service not known"),
)


@pytest.mark.parametrize("error", MAIL, ids=lambda error: type(error).__name__)
def test_each_mail_server_error_has_its_own_message(error):
    message = why_not_mailed(error)

    assert type(error).__name__ not in message
    assert not LIBRARIES.search(message)


@pytest.mark.django_db
def test_a_damaged_zip_is_reported(team):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("1.jsonl", b"{}\n" * 100)
    damaged = packed.getvalue().replace(b"{}\n{}", b"{}\n[]")
    run_import = RunImport.objects.create(team=team)
    file = run_import.files.create(
        filename="a.zip", stored_name="a", num_bytes=len(damaged)
    )
    file.path.parent.mkdir(parents=True, exist_ok=True)
    file.path.write_bytes(damaged)

    with pytest.raises(ValueError, match=r"a\.zip") as refused:
        unpack(run_import)

    assert "CRC" not in str(refused.value)


@pytest.mark.django_db
def test_a_role_is_written_without_an_article(team, alice, bob):
    by = Membership.objects.get(user=alice)
    Membership.objects.filter(pk=by.pk).update(role=Role.ADMIN)
    other = Membership.objects.get(user=bob)
    Membership.objects.filter(pk=other.pk).update(role=Role.MEMBER)

    with pytest.raises(ValueError, match=r"\(member\)"):
        change_role(by=by, of=other, role=Role.OWNER)


@pytest.mark.django_db(transaction=True)
def test_the_user_who_locked_a_run_is_named(team, alice):
    """PostgreSQL has already read it as unlocked."""
    run = make_run(team)

    def describe() -> str:
        try:
            describe_run(run=run, user=alice, typed={"name": "new"})
        except ValueError as error:
            return str(error)
        finally:
            connection.close()
        return ""

    is_locked, may_go_on = Event(), Event()

    def lock() -> None:
        try:
            with transaction.atomic():
                held = Run.objects.filter(pk=run.pk)
                held.update(locked_at=timezone.now(), locked_by=alice)
                is_locked.set()
                assert may_go_on.wait(30)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        locking = pool.submit(lock)
        assert is_locked.wait(30)
        future = pool.submit(describe)
        wait_for_a_blocked_lock()
        may_go_on.set()
        locking.result(30)
        message = future.result(30)

    assert str(alice) in message
