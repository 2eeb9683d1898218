"""What a page may send to the real consumer: nothing, or what it asks for."""

from __future__ import annotations

import hypothesis
import pytest
from django.conf import settings
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dashboard.accounts.models import Team
from dashboard.live.messages import BAD_MESSAGE
from tests.dashboard.runs.stories import queue_run
from tests.inputs.parsers.row import JSON, dumped, shaped
from tests.inputs.wire import BINARY, CLOSE, TEXT, Heard, Wire, closing, frame

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
FEW, MANY = 60, 20_000
TOO_BIG, NO_UTF8, PROTOCOL = 1009, 1007, 1002
REQUESTS = shaped(type=st.just("after"), seq=st.integers(), epoch=st.integers())
SENT = st.one_of(
    (JSON | REQUESTS).map(dumped).map(str.encode).map(lambda d: frame(TEXT, d)),
    st.binary(max_size=200).map(lambda data: frame(TEXT, data)),
    st.binary(max_size=200).map(lambda data: frame(BINARY, data)),
    st.binary(max_size=40),  # no frames at all
    st.builds(
        frame,
        st.integers(0, 15),
        st.binary(max_size=130),
        fin=st.booleans(),
        rsv=st.integers(0, 7),
        masked=st.booleans(),
    ),
)


class Page:
    """Opens the socket of a run, as a browser that is signed in."""

    def __init__(self, app: str, client: Client, team: Team) -> None:
        name = settings.SESSION_COOKIE_NAME
        self.port = int(app.rpartition(":")[2])
        self.path = f"/ws/runs/{queue_run(team).id}/"
        self.headers = {
            "Host": f"127.0.0.1:{self.port}",
            "Origin": app,
            "Cookie": f"{name}={client.cookies[name].value}",
        }

    def open(self, query: str = "") -> tuple[Wire, str]:
        wire = Wire(self.port)
        return wire, wire.shake(self.headers, self.path + query)

    def tell(self, sent: bytes, *, goes_away: bool = False) -> Heard:
        """All that is said to this, until the server hangs up."""
        wire, head = self.open()
        assert " 101 " in head, head
        wire.send(sent)
        if goes_away:  # else half a frame, or what is allowed, is followed by silence
            wire.close_sending()
        heard = wire.hear()
        wire.socket.close()
        return heard


@pytest.fixture
def page(live_app: str, alice_client: Client, team: Team) -> Page:
    return Page(live_app, alice_client, team)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(TEXT, b"{}"), BAD_MESSAGE),
        (frame(TEXT, b""), BAD_MESSAGE),
        (frame(TEXT, b"[" * 900), BAD_MESSAGE),
        (frame(TEXT, b'{"type": "after", "seq": -1}'), BAD_MESSAGE),
        (frame(TEXT, b'{"type": "after", "seq": 1e400}'), BAD_MESSAGE),
        (frame(TEXT, b'{"type": "after", "seq": ' + b"9" * 500 + b"}"), BAD_MESSAGE),
        (frame(TEXT, b"x" * 1_001), BAD_MESSAGE),
        (frame(BINARY, b'{"type": "after", "seq": 1}'), BAD_MESSAGE),
        (frame(TEXT, b"x" * 16_385), TOO_BIG),
        (frame(TEXT, b"\xff"), NO_UTF8),
        (frame(3, b"x"), PROTOCOL),
        (closing(4999), 4999),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_a_page_may_not_say_ends_its_socket_with_the_reason(
    page: Page, sent: bytes, code: int
) -> None:
    heard = page.tell(sent)

    assert (heard.code, heard.has_hung_up) == (code, True)


@pytest.mark.parametrize(
    "query", ["?after=x", "?after=-1", "?after=1&epoch=x", "?after=" + "9" * 5_000,
              "?" + "&".join(["a=1"] * 1_100)],
    ids=lambda query: query[:20],
)  # fmt: skip
def test_an_address_that_means_nothing_opens_no_socket(page: Page, query: str) -> None:
    wire, head = page.open(query)

    wire.socket.close()
    assert " 403 " in head


def test_whatever_is_sent_the_server_goes_on(
    page: Page, request: pytest.FixtureRequest
) -> None:
    @hypothesis.settings(
        max_examples=MANY if request.config.getoption("--soak") else FEW,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(SENT)
    def goes_on(sent: bytes) -> None:
        heard = page.tell(sent, goes_away=True)

        assert heard.has_hung_up
        assert heard.code not in (1006, 1011)  # that it failed itself
        assert all(opcode != CLOSE for opcode, _ in heard.frames[:-1])

    goes_on()

    wire, head = page.open()
    wire.socket.close()
    assert " 101 " in head
