"""The board of reproductions: states, scores, verdicts, and launches."""

from typing import Any

import pytest
from django.utils import timezone

from dashboard.analysis.reproductions import Seeds, read_board
from dashboard.runs.models import Run, RunEvent, RunState
from tests.dashboard.runs.launching import (
    make_dataset,
    make_recipe,
    make_run,
    summarize,
)
from trainer.reproductions.reproduction import load_reproduction

pytestmark = pytest.mark.django_db
GSM8K = load_reproduction("gsm8k-1.5b-lora")
STRICT, LENIENT = GSM8K.scores.values()


@pytest.fixture(autouse=True)
def own_folder(settings, tmp_path):
    """Keep a launched starter out of what other tests find."""
    settings.COHORT_DATA = tmp_path / "data"


@pytest.fixture
def launch(team):
    """Make a run of the reproduction; the values are its scores."""
    dataset, recipe = make_dataset(team), make_recipe(team)

    def make(
        seed: int,
        strict: float | None = None,
        *,
        state: RunState | None = None,
        **parts,
    ) -> Run:
        config = GSM8K.config(model=GSM8K.model, seed=seed, test="t").model_dump(
            mode="json"
        )
        for part, values in parts.items():
            config[part] |= values
        run = make_run(
            team,
            f"seed-{seed}",
            dataset=dataset,
            recipe=recipe,
            state=state or (RunState.QUEUED if strict is None else RunState.FINISHED),
            config=config,
        )
        if strict is not None:
            summarize(run, STRICT, last=strict)
            summarize(run, LENIENT, last=strict + 0.01)
        return run

    return make


def seeds_of(team) -> Seeds:
    board = {seeds.reproduction.name: seeds for seeds in read_board(team)}
    return board[GSM8K.name]


def test_without_runs_nothing_is_claimed(team):
    for seeds in read_board(team):
        assert seeds.state == "none"
        assert seeds.scores == []
        assert seeds.verdict == ""


def test_runs_lead_the_board_then_what_a_cpu_trains(team, launch):
    launch(0)

    names = [seeds.reproduction.name for seeds in read_board(team)]

    on_cpu = ["rlox-toy", "smollm2-arithmetic", "starter-countdown"]
    assert names[:4] == [GSM8K.name, *on_cpu]


def test_a_queued_seed_is_running(team, launch):
    launch(0)

    assert seeds_of(team).state == "running"
    assert seeds_of(team).scores == []


def test_seeds_that_are_all_paused_are_not_said_to_run(team, launch):
    launch(0, state=RunState.PAUSED)
    assert seeds_of(team).state_text == "paused, 0 of 1 seeds finished"

    launch(1)

    assert seeds_of(team).state_text == "running, 0 of 2 seeds finished"


def test_two_seeds_have_a_mean_and_no_verdict(team, launch):
    launch(0, 0.70)
    launch(1, 0.72)

    seeds = seeds_of(team)
    assert seeds.state == "few"
    assert seeds.scores[0].mean == pytest.approx(0.71)
    assert seeds.scores[0].interval is None
    assert seeds.verdict == ""


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.76, 0.78, 0.80), "within"),
        ((0.70, 0.71, 0.72), "below"),
        ((0.84, 0.85, 0.86), "above"),
    ],
)
def test_three_seeds_have_students_interval_and_a_verdict(
    team, launch, values, verdict
):
    for seed, value in enumerate(values):
        launch(seed, value)

    seeds = seeds_of(team)
    strict, lenient = seeds.scores
    assert (strict.name, lenient.name) == ("strict", "lenient")
    # n = 3: mean ± 4.3027 · s / √3
    spread = (values[2] - values[0]) / 2
    reach = 4.302653 * spread / 3**0.5
    assert strict.interval == pytest.approx((values[1] - reach, values[1] + reach))
    assert lenient.mean == pytest.approx(values[1] + 0.01)
    assert (seeds.state, seeds.verdict) == ("done", verdict)
    assert seeds.is_exact


def test_a_seed_that_ran_twice_counts_once(team, launch):
    launch(0, 0.70)
    launch(0, 0.75)

    seeds = seeds_of(team)
    assert [score.values for score in seeds.scores] == [[0.75], [0.76]]


def test_settings_that_change_no_result_leave_it_exact(team, launch):
    launch(0, 0.75, optim={"micro_batch_tokens": 4096}, logging={"token_groups": 0})

    seeds = seeds_of(team)
    assert seeds.changes == ["optim.micro_batch_tokens"]
    assert seeds.is_exact


def test_changed_settings_are_a_result_of_their_own(team, launch):
    launch(0, 0.75, optim={"learning_rate": 1e-5})
    assert not seeds_of(team).is_exact
    assert seeds_of(team).changes == ["optim.learning_rate"]

    launch(1, 0.70)

    assert seeds_of(team).is_exact
    assert list(seeds_of(team).runs) == [1]
    assert seeds_of(team).num_others == 1


@pytest.mark.parametrize(
    "state", [RunState.FAILED, RunState.STOPPED], ids=["failed", "stopped"]
)
def test_runs_that_did_not_finish_do_not_count(team, launch, state):
    launch(0, state=state)

    assert seeds_of(team).state == "none"


@pytest.mark.parametrize(
    "split", [("o/r", "main/train"), ("openai/gsm8k", "main/test")]
)
def test_runs_of_another_model_or_split_do_not_count(team, launch, split):
    launch(0, 0.7, model={"path": "Qwen/Qwen2.5-7B-Instruct"})
    other = launch(1, 0.7)
    source = {"kind": "hub", "dataset": split[0], "part": split[1]}
    other.dataset_version.source = source
    other.dataset_version.save()

    assert seeds_of(team).state == "none"


def test_a_reported_run_with_the_settings_counts(team, launch):
    run = launch(0, 0.75)
    run.config = {"settings": run.config}
    run.source = {"tools": ["Cohort"], "num_files": 2}
    run.dataset_version = None
    run.save()

    assert seeds_of(team).state == "few"


@pytest.mark.parametrize("reported", [None, [1], {"seed": "3.0"}], ids=str)
def test_odd_reported_settings_break_no_board(team, launch, reported):
    run = launch(0, 0.75)
    own = run.config | reported if isinstance(reported, dict) else reported
    run.config = {"settings": own, "model": run.config["model"]}
    run.source = {"kind": "report"}
    run.save()

    assert list(seeds_of(team).runs) == ([3] if isinstance(reported, dict) else [])


def test_a_result_has_its_hardware_and_versions(team, launch):
    run = launch(0, 0.75)
    RunEvent.objects.create(
        run=run,
        seq=1,
        attempt=1,
        line=1,
        type="run_started",
        step=0,
        time=timezone.now(),
        body={
            "device": "NVIDIA H100",
            "engine": "vLLM 0.32.0",
            "versions": {"cohort": "0.1.0", "torch": "2.13.0", "python": "3.11"},
        },
    )

    facts = seeds_of(team).facts
    assert facts == ["NVIDIA H100", "vLLM 0.32.0", "cohort 0.1.0", "torch 2.13.0"]


def test_the_board_makes_few_queries(team, launch, django_assert_num_queries):
    for seed in range(4):
        launch(seed, 0.75)

    with django_assert_num_queries(4):
        read_board(team)


def _launch(client: Any, team: Any, name: str) -> Any:
    return client.post(f"/{team.slug}/reproductions/{name}/launch", follow=True)


def test_launch_opens_new_run_with_three_seeds(alice_client, team):
    page = _launch(alice_client, team, "rlox-toy")

    assert page.status_code == 200
    form = page.context["form"]
    assert form.start.key == "reproduction:rlox-toy"
    assert form.texts["optim.learning_rate"] == "0.003"
    assert form.dataset_version.num_rows == 40
    assert form.recipe_version.spec["rules"][0]["name"] == "token"
    runs = page.context["sweep"].runs
    assert [planned.launch.config.seed for planned in runs] == [0, 1, 2]
    for planned in runs:
        changes = load_reproduction("rlox-toy").find_changes(planned.launch.config)
        assert set(changes) <= {"data.max_prompt_tokens"}


def test_a_second_launch_makes_no_second_dataset_or_reward(alice_client, team):
    first = _launch(alice_client, team, "rlox-toy").context["form"]
    second = _launch(alice_client, team, "rlox-toy").context["form"]

    assert (first.dataset, first.recipe) == (second.dataset, second.recipe)


def test_a_launch_takes_the_imported_splits(alice_client, team):
    for part, name in (("main/train", "train"), ("main/test", "test")):
        version = make_dataset(team, name, num_rows=200)
        version.source = {"kind": "hub", "dataset": "openai/gsm8k", "part": part}
        version.save()

    form = _launch(alice_client, team, GSM8K.name).context["form"]

    assert form.dataset_version.source["part"] == "main/train"
    (chosen,) = form.eval_sets
    assert (chosen.name, chosen.version.source["part"]) == ("test", "main/test")
    assert seeds_of(team).missing == []


def test_an_unknown_reproduction_is_404(alice_client, team):
    assert _launch(alice_client, team, "nothing").status_code == 404


def test_the_page_shows_states_and_both_scores(alice_client, team, launch):
    for seed in range(3):
        launch(seed, 0.77 + seed / 100)

    page = alice_client.read(f"/{team.slug}/reproductions/")

    assert page.count('data-state="none"') == 10
    assert 'data-state="done"' in page
    assert 'data-verdict="within"' in page
    assert 'data-score="strict"' in page
    assert 'data-score="lenient"' in page
