from typing import Any

import pytest

from dashboard.completions.signals.records import SIGNALS
from dashboard.completions.signals.signal_map import BANDS, MAX_ROWS, read_map
from tests.dashboard.completions.factories import make_run
from tests.dashboard.completions.rollups import make_rollup
from tests.dashboard.completions.step_groups import make_group


def cells(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Each as (first step of its column, lowest prompt of its row, band, groups)."""
    found = answer["cells"]
    return [
        (
            answer["steps"][column]["first"],
            answer["rows"][row]["low"],
            BANDS[band],
            num,
        )
        for column, row, band, num in zip(
            found["column"], found["row"], found["band"], found["num"], strict=True
        )
    ]


def test_each_group_of_a_short_run_is_a_cell(run):
    right = make_group([1.0, 1.0], prompt_index=7, signal="all_right")
    mixed = make_group([1.0, 0.0, 0.0, 0.0], prompt_index=2, reward_std=0.25)
    make_rollup(run, 1, [right, mixed])
    make_rollup(run, 3, [make_group([0.0, 0.0], prompt_index=7)])

    answer = read_map(run, order="dataset")

    assert cells(answer) == [
        (1, 2, "mixed", 1),
        (1, 7, "all_right", 1),
        (3, 7, "all_wrong", 1),
    ]
    assert answer["cells"]["spread"] == [0.25, 0.0, 0.0]
    assert answer["cells"]["mean"] == [0.25, 1.0, 0.0]
    assert answer["cells"]["step"] == [1, 1, 3]
    assert answer["cells"]["prompt"] == [2, 7, 7]
    assert (answer["num_groups"], answer["num_prompts"]) == (3, 2)


def test_the_effective_batch_counts_completions_of_mixed_groups(run):
    four = [1.0, 0.0, 0.0, 0.0]
    groups = [
        make_group(four),
        make_group(four, prompt_index=1),
        make_group(four, prompt_index=2, is_trained=False),
        make_group([0.0] * 4, prompt_index=3),
    ]
    make_rollup(run, 1, groups)

    (column,) = read_map(run, order="dataset")["steps"]

    assert (column["num_effective"], column["num_sampled"]) == (8, 16)
    assert column["signals"] == dict.fromkeys(SIGNALS, 0) | {"mixed": 3, "all_wrong": 1}


@pytest.mark.parametrize(
    ("order", "prompts"),
    [("dataset", [1, 2, 3]), ("difficulty", [3, 1, 2]), ("first_seen", [2, 3, 1])],
)
def test_rows_are_in_the_chosen_order(run, order, prompts):
    make_rollup(run, 1, [make_group([1.0, 1.0], prompt_index=2)])
    make_rollup(run, 2, [make_group([0.0, 0.0], prompt_index=3)])
    make_rollup(run, 3, [make_group([1.0, 0.0], prompt_index=1)])
    make_rollup(run, 4, [make_group([1.0, 0.0], prompt_index=3)])

    rows = read_map(run, order=order)["rows"]

    assert [row["low"] for row in rows] == prompts


def test_prompts_without_a_score_are_last(run):
    nothing = make_group([None, None], prompt_index=0, signal="unscorable")
    make_rollup(run, 1, [nothing, make_group([0.0, 0.0], prompt_index=1)])

    rows = read_map(run, order="difficulty")["rows"]

    assert [row["low"] for row in rows] == [1, 0]


def test_many_prompts_share_rows_and_many_steps_columns(run):
    num_prompts = 2 * MAX_ROWS + 1
    for step in range(1, 322):
        prompt = (step - 1) % num_prompts
        make_rollup(run, step, [make_group([1.0, 0.0], prompt_index=prompt)])

    answer = read_map(run, order="dataset")

    assert answer["steps_a_column"] == 3
    assert answer["prompts_a_row"] == 3
    assert len(answer["steps"]) == 107
    assert [answer["rows"][0], answer["rows"][-1]] == [
        {"num": 3, "low": 0, "high": 2},
        {"num": 2, "low": 159, "high": 160},
    ]
    assert sum(answer["cells"]["num"]) == 321
    assert sum(s["signals"]["mixed"] for s in answer["steps"]) == 321
    assert {s["num_effective"] for s in answer["steps"]} == {2}


@pytest.mark.parametrize(
    ("signals", "band"),
    [
        (["all_right", "all_right"], "all_right"),
        (["all_right", "mixed"], "mixed"),
        (["all_right", "all_wrong"], "dead"),
    ],
)
def test_a_cell_of_several_groups_has_their_common_band(run, signals, band):
    for step in range(1, 162):
        signal = signals[(step - 1) % 2]
        make_rollup(run, step, [make_group([1.0, 0.0], signal=signal)])

    answer = read_map(run, order="dataset")

    assert cells(answer)[0] == (1, 0, band, 2)
    assert (answer["cells"]["step"][0], answer["cells"]["prompt"][0]) == (2, 0)


def test_a_zoom_has_only_its_steps(run):
    for step in range(1, 6):
        make_rollup(run, step, [make_group([1.0, 0.0])])

    answer = read_map(run, order="dataset", first=2, last=3)

    assert [step["first"] for step in answer["steps"]] == [2, 3]


def test_superseded_steps_are_missing(run):
    make_rollup(run, 1, [make_group([1.0, 0.0])])
    make_rollup(run, 2, [make_group([1.0, 0.0])], superseded_by=2)

    answer = read_map(run, order="dataset")

    assert [step["first"] for step in answer["steps"]] == [1]


def test_a_run_without_groups_has_an_empty_map(run):
    make_rollup(run, 1, seconds={"step": 1.0})

    assert read_map(run, order="dataset")["steps"] == []
    assert read_map(make_run(run.team, name="new"), order="dataset")["steps"] == []
