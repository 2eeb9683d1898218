"""A run's overview, config and checkpoints; stopping it."""

import json
import re
import tomllib
from typing import Any

import pytest
from django.utils import timezone

from dashboard.runs.charts.figures import NO_KL
from dashboard.runs.config.toml import write_toml
from dashboard.runs.models import Run, RunEvent, RunState, SettingChange
from dashboard.runs.queries import run_directory
from tests.dashboard.completions.factories import make_config, make_run
from tests.dashboard.runs.stories import Story, queue_run
from tests.page_client import PageClient
from trainer.config import RunConfig, read_config

RULES = [
    {
        "name": "answer",
        "kind": "exact_answer",
        "weight": 0.1,
        "params": {},
    }
]


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    return queue_run(shared_team)


def page(client: PageClient, run: Run, tab: str = "") -> str:
    return client.read(f"/alpha/runs/{run.id}/{tab}")


def test_every_tab_names_the_run_and_its_state(alice_client, run):
    for tab in ("", "config/", "checkpoints/"):
        html = page(alice_client, run, tab)

        assert run.name in html, tab
        assert 'data-state="queued"' in html, tab


def figures(html: str) -> dict[str, Any]:
    start = html.index('<script id="figures"')
    text = html[html.index(">", start) + 1 : html.index("</script>", start)]
    found: dict[str, Any] = json.loads(text)
    return found


def test_each_rule_has_a_line_and_shares_of_groups_add_up_to_all(alice_client, run):
    drawn = figures(page(alice_client, run, "metrics/"))
    rules = drawn["reward-rule-mean"]["data"]

    assert [trace["name"] for trace in rules] == ["answer", "format"]
    assert rules[0]["meta"]["terms"] == [["reward/answer/mean", 1]]
    traces = drawn["group-frac"]["data"]
    metrics = {"zero_std": 0.7, "all_max": 0.4, "all_min": 0.2}

    shares = [
        trace["meta"]["constant"]
        + sum(metrics[m.removeprefix("group/frac_")] * f for m, f in terms(trace))
        for trace in traces
    ]

    assert shares == pytest.approx([0.4, 0.3, 0.1, 0.2])


def terms(trace: dict[str, Any]) -> list[tuple[str, float]]:
    return [tuple(term) for term in trace["meta"]["terms"]]


def test_a_run_without_kl_says_so(alice_client, team):
    without = queue_run(team, config=make_config(reference={"kind": "none"}))
    with_kl = queue_run(team, config=make_config(loss={"kl_coef": 0.01}))

    assert NO_KL in page(alice_client, without, "metrics/")
    assert NO_KL not in page(alice_client, with_kl, "metrics/")
    assert "kl-mean" not in figures(page(alice_client, without))
    assert "kl-mean" in figures(page(alice_client, with_kl))


def test_numbers_are_shown_without_javascript(alice_client, run):
    story = Story(run)
    story.start()
    story.take_steps(2, **{"reward/mean": 0.8125})

    assert "0.8125" in page(alice_client, run, "metrics/")
    overview = page(alice_client, run)
    assert re.search(r"data-tile-value>0\.812<", overview)
    assert f"<title>2/{run.num_steps} · {run.name} · Cohort</title>" in overview


def test_the_system_tab_shows_device_and_engine(alice_client, run):
    assert "data-engine" not in page(alice_client, run, "metrics/")
    bodies = (
        {"device": "cpu", "engine": "built-in decoder"},
        {"device": "NVIDIA H100", "engine": "vLLM 0.32.0"},
    )
    for number, body in enumerate(bodies, start=1):
        common = {"run": run, "step": 0, "time": timezone.now(), "line": 1}
        kind = "run_started" if number == 1 else "run_resumed"
        RunEvent.objects.create(
            **common, seq=number, attempt=number, type=kind, body=body
        )

    html = page(alice_client, run, "metrics/")

    match = re.search(r"data-engine>([^<]+)<", html)
    assert match
    assert {"NVIDIA H100", "vLLM 0.32.0"} <= set(re.split(r": |\. |\.$", match[1]))


def test_the_overview_takes_few_queries(
    alice_client, run, django_assert_max_num_queries
):
    # Session, user, membership, run, newest checkpoint, what was made of it, its star,
    # four for its place in the queue, device and engine, memberships.
    with django_assert_max_num_queries(14):
        page(alice_client, run)


def test_settings_open_on_what_differs_from_the_defaults(alice_client, team, alice):
    config = make_config(optim={"learning_rate": 3e-5})
    run = queue_run(team, config=config)
    SettingChange.objects.create(
        run=run,
        number=1,
        actor=alice,
        before={"checkpoint.every_steps": 5},
        after={"checkpoint.every_steps": 10},
        applied_step=4,
    )

    def shown(query: str = "") -> list[str]:
        html = page(alice_client, run, f"config/{query}")
        return re.findall(r'data-setting="([\w.]+)"', html)

    changed, every = shown(), shown("?all=1")
    assert {"optim.learning_rate", "checkpoint.every_steps"} <= set(changed)
    assert "optim.beta1" not in changed
    assert set(changed) < set(every)
    html = page(alice_client, run, "config/")
    assert f'data-num-changed="{len(changed)}"' in html
    assert re.findall(r'data-changed-at="(\d*)"', html) == ["4"]
    assert shown("?q=learning+rate") == ["optim.learning_rate"]
    assert shown("?q=beta1") == []
    assert shown("?q=beta1&all=1") == ["optim.beta1"]


PHASES = [
    {
        "name": "warm",
        "num_steps": 40,
        "changes": {"loss": {"dual_clip": None}, "optim": {"learning_rate": 3e-5}},
    },
    {
        "name": "rest",
        "num_steps": 60,
        "changes": {"reward": {"recipe": {"rules": RULES}}},
    },
]


PAGES = ("", "metrics/", "groups/", "completions/", "prompts/", "health/", "ranks/")
MORE_PAGES = ("checkpoints/", "config/", "logs/", "change/", "headline/", "lineage/")


def test_settings_of_the_next_release_do_not_keep_a_run_from_being_read(
    alice_client, team
):
    """While an upgrade goes on, or after a rollback."""
    run = queue_run(team, config=make_config(phases=PHASES))
    run.config["quantum"] = {"qubits": 7}
    run.config["optim"]["spin"] = "up"
    run.config["logging"]["spin"] = "up"
    run.config["phases"][0] |= {"spin": "up"}
    run.config["phases"][0]["changes"] |= {"quantum": {}, "loss": {"spin": "up"}}
    run.save(update_fields=["config"])

    found = {
        path: alice_client.get(f"/{team.slug}/runs/{run.pk}/{path}").status_code
        for path in (*PAGES, *MORE_PAGES)
    }
    found["list"] = alice_client.get(f"/{team.slug}/runs/").status_code
    found["compare"] = alice_client.get(
        f"/{team.slug}/compare?runs={run.pk}"
    ).status_code

    assert found == dict.fromkeys(found, 200)
    file = alice_client.get(f"/{team.slug}/runs/{run.pk}/config.toml")
    assert file.status_code == 409


def test_phases_are_a_table_of_their_steps_and_settings(alice_client, team):
    config = make_config(phases=PHASES, optim={"num_steps": 100})
    run = queue_run(team, config=config)

    html = page(alice_client, run, "config/")

    rows = re.findall(r'<tr data-phase="(\w+)">(.*?)</tr>', html, re.DOTALL)
    warm, rest = (re.sub(r"<[^>]*>|\s+", " ", row) for _, row in rows)
    assert [name for name, _ in rows] == ["warm", "rest"]
    assert "1 to 40" in warm
    assert "3e-5" in warm
    assert "41 to 100" in rest
    assert "0.1·answer" in rest
    paths = [re.findall(r'data-own="([\w.]+)"', row) for _, row in rows]
    assert paths == [["loss.dual_clip", "optim.learning_rate"], ["reward.recipe"]]
    # A search also finds what a phase changes.
    assert 'data-phase="warm"' in page(alice_client, run, "config/?q=dual_clip")
    assert "data-phase" not in page(alice_client, run, "config/?q=every_steps&all=1")


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_the_downloaded_config_is_the_snapshot(alice_client, team, suffix):
    awkward = {"prompt_template": 'a "quoted"\n{prompt} \\ 😀 \x7f', "rows": "r.jsonl"}
    config = make_config(RULES, data=awkward, optim={"max_grad_norm": None})
    run = make_run(team, config=config)

    text = page(alice_client, run, f"config.{suffix}")

    tree = tomllib.loads(text) if suffix == "toml" else json.loads(text)
    assert RunConfig.model_validate(tree) == RunConfig.model_validate(config)


def test_a_downloaded_file_is_the_run_again_though_toml_has_no_null(tmp_path):
    unset = {
        "loss": {"dual_clip": None, "kl_target": None, "clip_low": 0.1},
        "optim": {"max_grad_norm": None},
        "reward": {"step_recipe": None},
    }
    config = RunConfig.model_validate(
        make_config(
            loss={"dual_clip": 3, "kl_coef": 0.1, "kl_target": 2},
            optim={"num_steps": 3, "max_grad_norm": None},
            phases=[{"name": "free", "num_steps": 3, "changes": unset}],
        )
    )
    (tmp_path / "run.toml").write_text(write_toml(config))

    again = read_config(tmp_path / "run.toml")

    assert again == config
    (phase,) = again.phase_configs
    assert phase.config.loss.dual_clip is None
    assert phase.config.loss.kl_target is None


def test_checkpoints_show_step_size_and_hash(alice_client, run):
    story = Story(run)
    story.start()
    story.take_steps(1)
    story.save_checkpoint()

    html = page(alice_client, run, "checkpoints/")

    assert "step-000001-attempt-1" in html
    assert "4.01 MiB" in html
    assert "ab" * 32 in html


def test_stopping_ends_a_queued_run_and_asks_the_worker_of_a_running_one(
    alice_client, team, run
):
    running = queue_run(team)
    Story(running).start()

    for each, state in ((run, RunState.STOPPED), (running, RunState.STOPPING)):
        response = alice_client.post(f"/alpha/runs/{each.id}/stop")

        each.refresh_from_db()
        assert response.status_code == 302
        assert each.state == state


def test_a_run_of_another_trainer_has_a_menu_without_what_needs_its_settings(
    alice_client, team
):
    run = make_run(team, source={"tools": ["TRL"]}, state="finished")

    page = alice_client.get(f"/alpha/runs/{run.pk}/").text

    assert 'value="trash"' in page
    assert 'data-open-dialog="describe-run"' in page
    assert f"?clone={run.pk}" not in page
    assert f"/runs/{run.pk}/change/" not in page
    assert 'data-open-dialog="cancel-run"' not in page


def test_a_viewer_is_not_offered_to_stop(bob_client, run):
    assert 'data-open-dialog="stop-run"' not in page(bob_client, run)


def test_a_failed_run_shows_the_reason_and_links_to_its_logs(alice_client, team):
    run = make_run(team, state="failed", fail_reason="no gpt-9")

    html = page(alice_client, run)

    assert "data-run-reason>no gpt-9<" in html
    assert f"/alpha/runs/{run.id}/logs/" in html


@pytest.mark.parametrize(("lines", "is_shown"), [("", False), ("loading\n", True)])
def test_a_failed_run_shows_its_log_if_it_says_more_than_the_reason(
    alice_client, team, lines, is_shown
):
    story = Story(queue_run(team))
    story.start()
    log = run_directory(story.run.pk).attempt(1).trainer_log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"{lines}no gpt-9\n")
    story.end(RunState.FAILED, fail_reason="no gpt-9")

    html = page(alice_client, story.run)

    assert ("data-run-failure-log" in html) is is_shown


def test_an_invalid_curve_request_is_refused(alice_client, run):
    for query in (
        "",
        "metrics=",
        "metrics=loss&first_step=x",
        "metrics=a&max_points=-1",
    ):
        response = alice_client.get(f"/alpha/runs/{run.id}/curves.json?{query}")

        assert response.status_code == 400, query
        assert response.json()["error"]


def test_curves_are_served_for_a_range_of_steps(alice_client, run):
    story = Story(run)
    story.start()
    story.take_steps(6)

    answer = alice_client.get(
        f"/alpha/runs/{run.id}/curves.json",
        {"metrics": "loss,never", "first_step": 2, "last_step": 4},
    ).json()

    assert answer["curves"]["loss"]["steps"] == [2, 3, 4]
    assert answer["curves"]["never"]["steps"] == []
    assert answer["is_thinned"] is False
