"""A run made elsewhere counts once its event log is imported."""

import json
from typing import Any

import pytest
from django.urls import reverse

from dashboard.analysis.compare.differences import compare_settings, lack_settings
from dashboard.analysis.reproductions import read_board
from tests.dashboard.transfers.test_importing_a_run import make, page_of, send
from trainer.events import (
    Evaluated,
    Event,
    GroupScored,
    RunFinished,
    RunStarted,
    ScoredCompletion,
    StepFinished,
)
from trainer.reproductions.reproduction import load_reproduction

pytestmark = pytest.mark.django_db
GSM8K = load_reproduction("gsm8k-1.5b-lora")


def log_of(config: dict[str, Any], *, strict: float) -> bytes:
    completion = ScoredCompletion(
        text="#### 18",
        num_tokens=4,
        end_reason="stop",
        reward=1.0,
        rules={"strict": 1.0, "lenient": 1.0},
        advantage=0.5,
        mean_logprob=-0.1,
    )
    events: list[Event] = [
        RunStarted(
            **_place(1, 0),
            num_steps=116,
            num_parameters=1_500_000_000,
            num_train_rows=7473,
            num_eval_rows=0,
            device="NVIDIA H100",
            engine="vLLM 0.32.0",
            versions={"cohort": "0.1.0", "torch": "2.13.0"},
            config=config,
        ),
        GroupScored(
            **_place(2, 116),
            prompt_index=3,
            prompt="How many?",
            answer="18",
            reward_mean=1.0,
            reward_std=0.0,
            signal="mixed",
            completions=[completion, completion.model_copy(update={"text": "17"})],
        ),
        StepFinished(**_place(3, 116), metrics={"loss": 0.1, "lr": 3e-5}),
        Evaluated(
            **_place(4, 116),
            name="test",
            num_prompts=1319,
            samples_per_prompt=1,
            metrics={
                "eval/test/mean": strict,
                "eval/test/rule/strict": strict,
                "eval/test/rule/lenient": strict + 0.01,
            },
        ),
        RunFinished(**_place(5, 116)),
    ]
    return "".join(event.model_dump_json() + "\n" for event in events).encode()


def _place(line: int, step: int) -> dict[str, Any]:
    return {"line": line, "attempt": 1, "time": 1_790_000_000.0 + line, "step": step}


def import_log(client: Any, config: dict[str, Any], *, strict: float) -> Any:
    log = log_of(config, strict=strict)
    return make(client, send(client, {"events.jsonl": log}))


def seeds_of(team: Any) -> Any:
    board = {seeds.reproduction.name: seeds for seeds in read_board(team)}
    return board[GSM8K.name]


def config_of(seed: int, **optim: Any) -> dict[str, Any]:
    config = GSM8K.config(model="/models/Qwen2.5-1.5B-Instruct", seed=seed, test="t")
    tree = config.model_dump(mode="json")
    tree["optim"] |= optim
    return tree


def test_three_imported_seeds_have_a_verdict(alice_client, team):
    for seed, strict in enumerate((0.77, 0.78, 0.79)):
        import_log(alice_client, config_of(seed), strict=strict)

    seeds = seeds_of(team)
    assert seeds.state == "done"
    assert sorted(seeds.runs) == [0, 1, 2]
    assert [sorted(score.values) for score in seeds.scores] == [
        pytest.approx([0.77, 0.78, 0.79]),
        pytest.approx([0.78, 0.79, 0.80]),
    ]
    assert seeds.verdict == "within"
    assert seeds.facts == [
        *("NVIDIA H100", "vLLM 0.32.0", "cohort 0.1.0", "torch 2.13.0")
    ]


def test_an_imported_log_keeps_settings_completions_and_metrics(alice_client, team):
    run = import_log(alice_client, config_of(1), strict=0.77)

    assert run.source["tools"] == ["Cohort"]
    assert run.config["settings"]["optim"]["learning_rate"] == 3e-5
    assert run.model_label == "Qwen2.5-1.5B-Instruct"
    assert run.last_step == 116
    assert len(run.groups.get().completions) == 2
    evaluation = run.evaluations.get()
    assert (evaluation.name, evaluation.step) == ("test", 116)
    assert evaluation.metrics["eval/test/rule/lenient"] == pytest.approx(0.78)


def test_an_imported_log_shows_its_held_out_scores_and_settings(alice_client, team):
    run = import_log(alice_client, config_of(1), strict=0.77)

    overview = alice_client.get(reverse("run", args=["alpha", run.pk]))
    settings = alice_client.get(reverse("run_config", args=["alpha", run.pk]))

    assert 'data-tile="eval/test/mean"' in overview.text
    assert 'id="chart-eval-test-mean"' in overview.text
    reported = dict(settings.context["reported"])
    assert reported["optim.learning_rate"] == "3e-5"


def test_settings_of_imported_logs_are_compared(alice_client, team):
    runs = [
        import_log(alice_client, config_of(0, learning_rate=rate), strict=0.77)
        for rate in (3e-5, 1e-5)
    ]

    differing = {one.key: one.values for one in compare_settings(runs) if one.differs}

    assert differing["optim.learning_rate"] == ["3e-5", "1e-5"]
    assert not any(map(lack_settings, runs))


def test_the_folder_above_names_an_imported_model(alice_client, team):
    tree = config_of(0)
    tree["model"]["path"] = "/starter/rlox/model"

    run_import = send(alice_client, {"events.jsonl": log_of(tree, strict=0.7)})

    form = page_of(alice_client, run_import).context["form"]
    assert form["model"].initial == "rlox"


def test_an_imported_run_with_another_rate_is_not_exact(alice_client, team):
    import_log(alice_client, config_of(0, learning_rate=1e-5), strict=0.77)

    assert not seeds_of(team).is_exact
    assert seeds_of(team).changes == ["optim.learning_rate"]


def test_a_log_of_an_older_version_is_imported_without_settings(alice_client, team):
    run_import = send(alice_client, {"events.jsonl": log_of({}, strict=0.7)})

    assert page_of(alice_client, run_import).status_code == 200
    assert "settings" not in make(alice_client, run_import).config
    assert seeds_of(team).state == "none"


def test_a_resumed_log_has_the_settings_too(alice_client, team):
    start, *others = log_of(config_of(0), strict=0.77).splitlines(keepends=True)
    resumed = json.loads(start) | {"type": "run_resumed", "checkpoint": "step-100"}
    log = b"".join([json.dumps(resumed).encode() + b"\n", *others])

    make(alice_client, send(alice_client, {"events.jsonl": log}))

    assert list(seeds_of(team).runs) == [0]


@pytest.mark.parametrize(
    "line",
    [
        {"_cohort": True, "config": [1]},
        {"step": 1, "_step": 1, "_cohort": 1, "config": {"model": 3}, "loss": 0.1},
    ],
)
def test_a_made_up_row_is_no_start_of_a_run(alice_client, line):
    log = log_of(config_of(0), strict=0.7) + json.dumps(line).encode() + b"\n"

    run_import = send(alice_client, {"events.jsonl": log})

    assert page_of(alice_client, run_import).status_code == 200
    run = make(alice_client, run_import, leave_out="on")
    assert run.config["settings"]["optim"]["num_steps"] == 116


def test_a_metric_named_like_settings_is_a_metric(alice_client):
    *others, end = log_of(config_of(0), strict=0.7).splitlines(keepends=True)
    step = {
        "type": "step_finished", "line": 9, "attempt": 1, "time": 1e9, "step": 7,
        "metrics": {"config": 0.5, "step": 3, "loss": 0.1},
    }  # fmt: skip
    log = b"".join([*others, json.dumps(step).encode() + b"\n", end])

    run = make(alice_client, send(alice_client, {"events.jsonl": log}))

    assert "config" in run.metric_names
    assert run.config["settings"]["optim"]["num_steps"] == 116


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "NVIDIA\x00"},
        {"versions": {"torch\x00": "\x00"}},
        {"config": [1]},
        {"config": {"model": 3}},
        {"versions": ["torch"]},
        {"device": {"name": "cpu"}},
    ],
)
def test_a_log_with_a_bad_start_breaks_no_page(alice_client, team, changes):
    start, *others = log_of(config_of(0), strict=0.7).splitlines(keepends=True)
    bad = json.dumps(json.loads(start) | changes).encode() + b"\n"

    run_import = send(alice_client, {"events.jsonl": b"".join([bad, *others])})

    assert page_of(alice_client, run_import).status_code == 200
    assert seeds_of(team).state == "none"
