"""Bad inputs of an endpoint, and the responses that they must get."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

from django.test import Client

from dashboard.accounts.models import Team, User
from dashboard.runs.models import Run
from tests.dashboard.api.asking import Program

# Messages of Python and its libraries, which do not help a user.
LIBRARIES = re.compile(
    r"set_int_max_str_digits|recursion depth|codec can't|utf-8-sig|gaierror|\[?Errno"
    r"|Traceback|<class '|object has no|has no attribute|\(char \d|pydantic"
    r"|NoneType|KeyError|TypeError|ValueError|int too large|could not convert"
    r"|invalid literal|out of range for|month must be|Arrow|Zip file|zipfile"
)


@dataclass(frozen=True, slots=True)
class World:
    """Objects that exist before the bad input."""

    client: Client  # of Alice, the owner
    program: Program  # with an admin token
    team: Team
    user: User
    run: Run


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    message: str  # the error, in one line


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    sent: Any
    status: int | None = None


Send = Callable[[World, Any], Response]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`leaves`: a count that bad input must not change, such as of datasets."""

    name: str
    send: Send
    cases: Sequence[Case]
    status: int = 422
    leaves: Callable[[], int] = lambda: 0


TELLING = {
    "field-error", "notice-error", "refusals", "block-problem", "score-error",
    "note-error", "filter-error", "notice-warning",
}  # fmt: skip
VOID = {"input", "br", "img", "hr", "meta", "link", "wbr", "path", "use", "source"}


class _Telling(HTMLParser):
    def __init__(self, *, sees_hidden: bool) -> None:
        super().__init__()
        self.sees_hidden = sees_hidden
        self.open: list[tuple[bool, bool]] = []  # tells, is hidden
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            given = dict(attrs)
            classes = set((given.get("class") or "").split())
            is_telling = given.get("aria-labelledby") == "refused-title"
            tells = is_telling or bool(classes & TELLING)
            self.open.append((tells, "hidden" in given))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and self.open:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        is_shown = self.sees_hidden or not any(hidden for _, hidden in self.open)
        if is_shown and any(tells for tells, _ in self.open):
            self.texts.append(data)


def message_of_page(response: Any, *, sees_hidden: bool = False) -> Response:
    """What a page says in red; `sees_hidden`: also where a script is to show it."""
    parser = _Telling(sees_hidden=sees_hidden)
    parser.feed(response.content.decode())
    return Response(response.status_code, in_one_line(" ".join(parser.texts)))


def message_of_problem(response: Any) -> Response:
    """Of the API: the detail, and the fields with it."""
    assert response["Content-Type"] == "application/problem+json", response.content
    tree = json.loads(response.content)
    errors = [f"{each['field']}: {each['message']}" for each in tree.get("errors", [])]
    return Response(
        response.status_code, in_one_line(" ".join([tree["detail"], *errors]))
    )


def shown_as_text(response: Any) -> Response:
    """Of an answer that is short as a whole: JSON for a script, or plain text."""
    return Response(response.status_code, in_one_line(response.content.decode()))


def in_one_line(text: str) -> str:
    return " ".join(text.split())
