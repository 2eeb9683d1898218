"""Every parameter and field that any page reads, with hostile values.

Which there are is found out by asking each page, so a new one is tried by itself. Under
--soak each is given every value, else one: the pages together are given them all. The
fields of the launch form are dealt out to the pages that read it, unless under --soak.
"""

import re
from collections.abc import Iterator
from itertools import cycle, islice
from urllib.parse import quote_plus
from zlib import crc32

import pytest
from django.test import Client

from dashboard.runs.models import Run
from tests.dashboard.test_every_route_is_guarded import OPEN, POST_ONLY, VIEWERS_POST
from tests.dashboard.test_every_route_is_guarded import addresses as addresses
from tests.inputs.requesting import Request, failures, names_read, response_of

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
ONLY_GET = {name for name, status in VIEWERS_POST.items() if status == 405}
# Rows that are read alike: the second evaluation set, and those after it.
ONE_OF_MANY = re.compile(r"-([2-9]|\d\d+)(-|$)")
# Pages that read most of their parameters once they know which run.
OF_A_RUN = {
    "compare", "compare_charts", "compare_figure", "compare_prompt", "sweep",
    "reward_new", "reward_edit", "rescoring_new", "report_insert",
    "prompts_of_runs", "runs_live",
}  # fmt: skip
# All read the whole launch form, by the same code.
OF_THE_LAUNCH_FORM = {
    "run_new", "run_new_summary", "run_new_start", "run_new_prompt", "run_new_sets",
    "run_new_recipe", "run_new_toml", "run_new_from_toml", "run_new_plan",
    "preset_save", "probe_launch",
}  # fmt: skip
# Percent-encoded, by what they are. Any of them may stand for any parameter.
VALUES: dict[str, str] = {
    "empty": "",
    "NUL": "%00",
    "a NUL inside": "1%00",
    "a lone surrogate": "%ED%A0%80",
    "invalid UTF-8": "%FF%FE1",
    "overlong UTF-8": "%C0%AF",
    "10 to the 400": "1" + "0" * 400,
    "5,000 digits": "9" * 5_000,
    "an exponent beyond floats": "1e400",
    "no number": "NaN",
    "infinity": "-Infinity",
    "below zero": "-1",
    "zero": "0",
    "2 to the 31": "2147483648",
    "2 to the 63": "9223372036854775808",
    "a fraction": "0.5",
    "hexadecimal": "0x10",
    "an underscore": "1_0",
    "an Arabic digit": "%D9%A1",
    "a list": "1,2,,3,1",
    "right-to-left override": "%E2%80%AEgnp.exe",
    "a line break": "a%0D%0ASet-Cookie:%20a=b",
    "100 kB": "x" * 100_000,
    "SQL": "1'%20OR%201=1;--%20%25%5F%5C",
    "markup": "%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
    "a template": "%7B%7B7*7%7D%7D%7B%25%20load%20%25%7D%25(a)s%25n",
    "a path": "../../../../etc/passwd",
    "JSON": "%7B%22a%22:%5B1,null%5D%7D",
    "JSON too deep": "%5B" * 2_000,
    "half of a pattern": "(a%2B%2B%5B%5C",
}
# How a parameter may be spelt: twice, as PHP's list, as an item of one.
SPELLINGS: dict[str, str] = {
    "twice": "{0}=1&{0}=x",
    "a list of PHP's": "{0}[]=1&{0}[]=2",
    "an item of a list": "{0}[0]=1&{0}.x=1",
    "no value": "{0}",
    "hundreds of times": "&".join(["{0}=1"] * 900),
}
NUM_VALUES = 1
DEALT = 4  # a field is tried on the first of these pages and on every fourth


def spellings(name: str) -> dict[str, str]:
    """Query strings that ask for this parameter in each hostile way."""
    plain = {of: f"{name}={value}" for of, value in VALUES.items()}
    return plain | {of: text.format(name) for of, text in SPELLINGS.items()}


class Trial:
    """Asks many things, and keeps what was not answered."""

    def __init__(self, client: Client, *, gives_all: bool) -> None:
        self.client = client
        self.gives_all = gives_all
        self.num_asked = 0
        self.num_names = 0
        self.unanswered: list[str] = []
        self._turns = cycle(range(len(spellings("a"))))
        self._tried: set[str] = set()  # fields of the launch form
        self._deals = cycle(range(DEALT))

    def ask(
        self, method: str, address: str, given: str = "", *, deals: bool = False
    ) -> None:
        """With each parameter that it reads, beside what is `given`, or its share."""

        def answer(query: str) -> object:
            return response_of(self.client, method, address, f"{query}&{given}")

        names = _names_to_try(answer, {part.split("=")[0] for part in given.split("&")})
        dealt = names
        if deals and not self.gives_all:
            dealt = self._deal(names)
        self.num_names += len(dealt)
        for name in dealt:
            beside = [f"{quote_plus(n)}=1" for n in names if n != name]
            for of, query in self._queries(name):
                parts = [query, *beside] if method == "post" else [query]
                self._ask_once(method, address, [*parts, given], f"{name}: {of}")

    def _deal(self, names: list[str]) -> list[str]:
        turn = next(self._deals)
        dealt = [
            name
            for name in names
            if name not in self._tried or crc32(name.encode()) % DEALT == turn
        ]
        self._tried.update(dealt)
        return dealt

    def _queries(self, name: str) -> Iterator[tuple[str, str]]:
        every_one = list(spellings(quote_plus(name)).items())
        if self.gives_all:
            yield from every_one
        else:
            yield from (every_one[turn] for turn in islice(self._turns, NUM_VALUES))

    def _ask_once(self, method: str, address: str, parts: list[str], what: str) -> None:
        self.num_asked += 1
        with failures() as found:
            status = response_of(
                self.client, method, address, "&".join(parts)
            ).status_code
        if status >= 500 or found:
            self.unanswered.append(f"{method} {address} {what}: {status} {found}")


def _names_to_try(ask: Request, given: set[str]) -> list[str]:
    names = [name for name in names_read(ask) if not ONE_OF_MANY.search(name)]
    return [name for name in names if name not in given]


@pytest.fixture
def trial(alice_client, request) -> Trial:
    return Trial(alice_client, gives_all=request.config.getoption("--soak"))


def test_no_page_parameter_causes_a_server_error(trial, addresses):
    run = Run.objects.earliest("pk").pk

    for name, address in addresses.items():
        if name not in POST_ONLY:
            trial.ask("get", address)
        if name in OF_A_RUN:
            trial.ask("get", address, f"runs={run}&run={run}")

    assert trial.unanswered == []
    assert trial.num_names > 300
    assert trial.num_asked >= trial.num_names * NUM_VALUES


def test_no_form_field_causes_a_server_error(trial, addresses):
    for name, address in addresses.items():
        if name not in ONLY_GET and name not in OPEN:
            trial.ask("post", address, deals=name in OF_THE_LAUNCH_FORM)

    assert trial.unanswered == []
    assert trial.num_names > 300
    assert trial.num_asked >= trial.num_names * NUM_VALUES
