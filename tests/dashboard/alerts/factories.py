"""Alerts as ingest leaves them, and servers that they are sent to."""

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.alerts.models import Alert, Channel, Delivery, Rule
from dashboard.runs.models import Run


def make_rule(team: Team, **fields: Any) -> Rule:
    given = {"name": "KL", "metric": "kl/mean", "kind": "above", "threshold": 1.0}
    return Rule.objects.create(team=team, **given | {"for_steps": 1} | fields)


def make_alert(run: Run, rule: Rule | None = None, **fields: Any) -> Alert:
    given: dict[str, Any] = {
        "metric": "kl/mean",
        "step": 7,
        "value": 2.0,
        "bound": 1.0,
        "read_as": {
            "name": "KL",
            "text": "kl/mean above 1",
            "why": "",
            "kind": "above",
            "for_steps": 1,
        },
        "readings": {"kl/mean": [[6, 0.5], [7, 2.0], [8, None]]},
        "groups": [[7, 0]],
    }
    return Alert.objects.create(run=run, rule=rule, **given | fields)


def make_delivery(channel: Channel, alert: Alert | None = None) -> Delivery:
    event = "alert.fired" if alert else "test"
    return Delivery.objects.create(
        channel=channel, event=event, alert=alert, not_before=timezone.now()
    )


@dataclass
class Hook:
    """A webhook's receiver on loopback; `status` is what it answers."""

    url: str = ""
    status: int = 204
    location: str = ""
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    wait: Callable[[], object] = lambda: None

    @property
    def host(self) -> str:
        return self.url.split("/")[2]


@contextlib.contextmanager
def serve_hook() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.seen.append((self.path, dict(self.headers), body))
            hook.wait()
            with contextlib.suppress(OSError):
                self.send_response(hook.status)
                if hook.location:
                    self.send_header("Location", hook.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/hook/T0K3N?key=S3CRET"
        thread = threading.Thread(
            target=server.serve_forever, args=(0.01,), daemon=True
        )
        thread.start()
        yield hook
        server.shutdown()
        thread.join()


@dataclass
class MailBox:
    """A mail server on loopback."""

    port: int = 0
    mails: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serve_mail() -> Iterator[MailBox]:
    box = MailBox()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 here")
            while line := self.rfile.readline().decode().strip():
                word = line.split()[0].upper()
                if word == "DATA":
                    self.say("354 go on")
                    box.mails.append(self.read_mail())
                self.say("221 bye" if word == "QUIT" else "250 fine")
                if word == "QUIT":
                    return

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def read_mail(self) -> str:
            lines = []
            while (line := self.rfile.readline().decode()) != ".\r\n":
                lines.append(line)
            return "".join(lines)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        box.port = server.server_address[1]
        thread = threading.Thread(
            target=server.serve_forever, args=(0.01,), daemon=True
        )
        thread.start()
        yield box
        server.shutdown()
        thread.join()
