"""A run whose rules run code says in which sandbox."""

from typing import Any

from django.test import Client
from django.utils import timezone

from dashboard.runs.models import Run, RunEvent
from tests.dashboard.completions.factories import make_run

CODE: list[dict[str, Any]] = [
    {"name": "mine", "kind": "python_function", "weight": 1.0, "params": {}}
]


def tell(run: Run, kind: str, *, step: int, level: str, seq: int) -> None:
    RunEvent.objects.create(
        run=run,
        seq=seq,
        attempt=seq,
        line=1,
        type=kind,
        step=step,
        time=timezone.now(),
        body={"versions": {"sandbox": f"level {level}"}},
    )


def pages(client: Client, run: Run) -> list[str]:
    return [
        " ".join(client.get(f"/alpha/runs/{run.pk}/{tab}").text.split())
        for tab in ("", "config/")
    ]


def test_the_level_is_on_its_pages(team, alice_client):
    run = make_run(team, rules=CODE)
    tell(run, "run_started", step=0, level="A", seq=1)
    tell(run, "run_resumed", step=7, level="A", seq=2)

    for html in pages(alice_client, run)[1:]:
        assert "level A (bubblewrap)" in html
        assert "from step" not in html


def test_a_resume_on_another_machine_shows_both_levels(team, alice_client):
    run = make_run(team, rules=CODE)
    tell(run, "run_started", step=0, level="A", seq=1)
    tell(run, "run_resumed", step=20, level="B", seq=2)

    for html in pages(alice_client, run)[1:]:
        assert "(bubblewrap) from step 1 " in html
        assert "seccomp) from step 21 " in html


def test_the_level_is_unknown_before_the_start_and_hidden_without_code(
    team, alice_client
):
    overview, config = pages(alice_client, make_run(team, rules=CODE))
    of_none = pages(alice_client, make_run(team))

    values = ["reward code" in html for html in (overview, config, *of_none)]
    assert values == [False, True, False, False]
    assert "level A" not in config
