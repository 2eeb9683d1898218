"""How fast a large version's pages are: python -m tests.bench.bench_rows [ROWS].

The whole page, as the web process makes it: the version's rows found, put in order and
written as HTML. A search that has not found twenty rows in half a second says how far
it came, and the browser asks on; both are measured, the first answer and all of them.
"""

from __future__ import annotations

import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

from tests.bench.database import throwaway_database
from tests.bench.machine import heading, say, table

TIMES = 5
NUM_WORDS = 30_000
RARE = "quaxolotl"  # in one row of 100,000


def main(num_rows: int) -> None:
    with throwaway_database():
        measure(num_rows)


def measure(num_rows: int) -> None:
    from django.conf import settings
    from django.test import Client

    from dashboard.accounts.models import Membership, Role, Team, User
    from dashboard.datasets.rows.orders import find_order, make_order

    settings.ALLOWED_HOSTS = ["testserver"]
    team = Team.objects.create(slug="bench", name="Bench")
    user = User.objects.create_user("bench")
    Membership.objects.create(team=team, user=user, role=Role.OWNER)
    version = make_version(team, num_rows)
    find_order(version, "prompt_length", is_turned=False)
    begun = time.perf_counter()
    for order in version.row_orders.all():
        make_order(order.pk)
    say(f"order by length, made once in the background: {passed(begun)}\n")

    client = Client()
    client.force_login(user)
    url = f"/bench/datasets/{version.dataset_id}/"
    rows = [
        [name, *times_of(lambda query=query: ask_all(client, url, query))]
        for name, query in asked(num_rows).items()
    ]
    say(heading("tests.bench.bench_rows", packages=("django", "psycopg")))
    say(table((f"of {num_rows:,} rows", "first answer", "all", "answers"), rows))


def asked(num_rows: int) -> dict[str, dict[str, Any]]:
    middle = {"from": num_rows // 2}
    return {
        "first page": {},
        "middle page": middle,
        "last page": {"from": num_rows - 20},
        "row gone to": {"row": num_rows // 3},
        "longest prompts first": {"sort": "-prompt_length"},
        "longest prompts, middle page": {"sort": "-prompt_length", **middle},
        "common word": {"q": "what"},
        "common word, last page": {"q": "what", "to": num_rows},
        "two letters, common": {"q": "ab"},
        "two letters, in no row": {"q": "~~"},
        "rare word": {"q": RARE},
        "text that is in no row": {"q": "what is not there"},
        "no answer (1 in 1,000)": {"answer": "no"},
        "column equals (1 in 5)": {"column": "level", "value": "3"},
        "prompts of 900 characters or more": {"min_chars": 900},
        "rare word, longest first": {"q": RARE, "sort": "-prompt_length"},
    }


def make_version(team: Any, num_rows: int) -> Any:
    from django.db import connection

    from dashboard.datasets.models import Dataset

    dataset = Dataset.objects.create(team=team, name="Large")
    version = dataset.versions.create(
        number=1,
        content_sha256="0" * 64,
        num_rows=num_rows,
        mapping={"prompt": "question", "answer": "answer", "columns": ["level"]},
    )
    columns = "version_id, position, prompt, is_chat, answer, columns"
    with connection.cursor() as cursor:
        with cursor.copy(f"COPY datasets_datasetrow ({columns}) FROM STDIN") as copy:
            for line in lines(version.pk, num_rows):
                copy.write(line)
        # As autovacuum does soon after an import.
        cursor.execute("VACUUM ANALYZE datasets_datasetrow")
        cursor.execute("SELECT avg(char_length(prompt)) FROM datasets_datasetrow")
        say(f"{num_rows:,} rows, prompts of {cursor.fetchone()[0]:.0f} characters\n")
    return version


def lines(version_id: int, num_rows: int) -> Iterator[str]:
    """Words of a made-up language, a few of them common, as in every language."""
    draw = random.Random(0)
    words = [
        "".join(draw.choices("etaoinshrdlucmfwyb", k=draw.randint(2, 9)))
        for _ in range(NUM_WORDS)
    ]
    weights = [1 / (rank + 1) for rank in range(NUM_WORDS)]
    text = draw.choices(words, weights, k=2_000_000)
    for number in range(num_rows):
        start = draw.randrange(len(text) - 200)
        said = " ".join(text[start : start + draw.randint(20, 130)])
        rare = f" {RARE}" if number % 100_000 == 77_777 % num_rows else ""
        answer = "\\N" if number % 1_000 == 500 else str(17 * number)
        prompt = f"Problem {number}: {said}{rare}. What is it?"
        columns = f'{{"level": {number % 5}}}'
        yield f"{version_id}\t{number}\t{prompt}\tf\t{answer}\t{columns}\n"


def ask_all(client: Any, url: str, query: dict[str, Any]) -> tuple[float, float, int]:
    """Seconds to the first answer, to the last, and how many there are."""
    begun = time.perf_counter()
    text = body(client.get(url, query))
    first = time.perf_counter() - begun
    number = 1
    while further := re.search(r'hx-get="([^"]*)"', text):
        header = {"HX-Request": "true"}
        text = body(client.get(url + unescape(further[1]), headers=header))
        number += 1
    return first, time.perf_counter() - begun, number


def body(answer: Any) -> str:
    assert answer.status_code == 200, answer
    text: str = answer.content.decode()
    return text


def times_of(call: Callable[[], tuple[float, float, int]]) -> list[str]:
    call()  # warms the cache
    taken = [call() for _ in range(TIMES)]
    first, whole, number = (statistics.median(column) for column in zip(*taken))  # noqa: B905 - of equal length
    return [f"{first * 1000:,.0f} ms", f"{whole * 1000:,.0f} ms", f"{number:.0f}"]


def passed(begun: float) -> str:
    return f"{time.perf_counter() - begun:.1f} s"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
