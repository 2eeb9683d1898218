"""How someone wants charts drawn is kept for that person, on all runs."""

from dashboard.runs.charts.figures import read_settings
from tests.dashboard.completions.factories import make_run

PLACE = "/alpha/runs/charts"


def test_chart_settings_apply_to_the_next_run(alice_client, team, alice):
    chosen = {"smooth": "0.9", "x": "tokens", "log": "all,kl-mean", "tails": "off"}

    answer = alice_client.post(PLACE, chosen)

    assert answer.status_code == 200, answer.content
    kept = "smooth=0.9&amp;x=tokens&amp;log=all%2Ckl-mean&amp;tails=off"
    for tab in ("", "metrics/"):
        page = alice_client.get(f"/alpha/runs/{make_run(team).id}/{tab}").text
        assert f'data-kept="{kept}"' in page


def test_chart_settings_belong_to_one_user_and_can_be_reset(
    alice_client, team, alice, bob
):
    alice_client.post(PLACE, {"smooth": "0.9"})
    assert read_settings(alice) == "smooth=0.9"
    assert read_settings(bob) == ""

    alice_client.post(PLACE, {})

    assert read_settings(alice) == ""


def test_an_invalid_chart_setting_is_refused(alice_client, team, alice):
    for name, value in (
        ("smooth", "1"),
        ("smooth", "nan"),
        ("smooth", "much"),
        ("x", "moon"),
        ("log", "<b>"),
        ("tails", "maybe"),
        ("from", "12"),
        ("clip", ",".join(["kl-mean"] * 200)),
    ):
        answer = alice_client.post(PLACE, {name: value})

        error = answer.json()["error"]
        assert answer.status_code == 400
        assert name in error or "characters" in error, value
    assert read_settings(alice) == ""
