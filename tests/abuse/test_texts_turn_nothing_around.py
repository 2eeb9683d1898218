"""A text that turns the direction of writing turns itself alone."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetRow
from dashboard.samples.models import Group
from tests.abuse.test_markup_stays_text import PAGES
from tests.dashboard.samples.factories import make_note
from tests.dashboard.samples.stored import change_completions
from tests.dashboard.test_every_route_is_guarded import addresses as addresses

pytestmark = pytest.mark.django_db

ODD = "\N{RIGHT-TO-LEFT OVERRIDE}.tfel \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN} שלום"
VOID = {"input", "img", "link", "meta", "br", "hr", "path", "source", "wbr"}
# Shown by the browser in a box of their own, or not at all.
BOXES = {"bdi", "textarea", "option", "title", "script", "input"}


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, bool]] = []
        self.bare: list[str] = []
        self.num_found = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append((tag, tag in BOXES or ("dir", "auto") in attrs))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            continue

    def handle_data(self, data: str) -> None:
        if ODD[:6] in data:
            self.num_found += 1
            if not any(stands_apart for _, stands_apart in self.open):
                self.bare.append(" > ".join(tag for tag, _ in self.open[-4:]))


def test_every_text_of_a_row_or_a_model_stands_apart(
    addresses: dict[str, str], team: Team, alice_client: Client
) -> None:
    Group.objects.update(prompt=ODD, answer=ODD)
    change_completions(text=ODD)
    for group in Group.objects.all():
        make_note(group, ODD)
    DatasetRow.objects.update(prompt=ODD, answer=ODD, columns={"level": ODD})
    num_found = 0

    for name in PAGES:
        page = alice_client.get(addresses[name])
        if page.headers["Content-Type"].startswith("text/html"):
            reader = Reader()
            reader.feed(page.content.decode())
            num_found += reader.num_found

            assert not reader.bare, name

    assert num_found > 10
