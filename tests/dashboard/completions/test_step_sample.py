"""The best and the worst completion of a step's groups, on the Overview."""

import re

from dashboard.completions.groups import pick_sample
from tests.dashboard.completions.factories import make_group, make_run
from tests.dashboard.runs.stories import Story, queue_run


def test_the_group_with_the_widest_spread_comes_first(team):
    run = make_run(team)
    make_group(run, step=1, prompt_index=0, rewards=[0, 1])
    make_group(run, step=2, prompt_index=1, rewards=[0.4, 0.6, 0.5])
    make_group(run, step=2, prompt_index=2, rewards=[1, 0, 0.5])

    first, second, around = (pick_sample(run, None, place=place) for place in (1, 2, 3))

    assert first
    assert second
    assert around
    assert (first.group.step, first.group.prompt_index) == (2, 2)
    assert (first.place, first.num_groups) == (1, 2)
    assert first.best
    assert first.worst
    assert (first.best.reward, first.worst.reward) == (1, 0)
    assert second.group.prompt_index == 1
    assert (around.place, around.group.prompt_index) == (1, 2)


def test_a_step_without_groups_shows_the_last_before_it(team):
    run = make_run(team)
    assert pick_sample(run, None, place=1) is None
    make_group(run, step=5, prompt_index=0)
    make_group(run, step=8, prompt_index=0)

    steps = [
        found.group.step
        for step in (None, 1, 5, 7, 9)
        if (found := pick_sample(run, step, place=1))
    ]

    assert steps == [8, 5, 5, 5, 8]


def test_the_part_is_chosen_by_its_address(alice_client, team):
    story = Story(queue_run(team))
    story.start()
    address = f"/alpha/runs/{story.run.pk}/samples/"
    assert "data-sample" not in alice_client.get(address).text
    for step in (1, 2):
        story.step = step
        for prompt in (3, 4):
            story.score_group(prompt)
        story.step -= 1
        story.take_steps(1)

    newest = alice_client.get(address).text
    chosen = alice_client.get(address, {"step": "1", "group": "2"}).text

    shown = r"data-sample-(?:step|place|next)[^>]*>(\d+)?"
    assert re.findall(shown, newest) == ["2", "1", ""]
    assert re.findall(r"data-sample-reward>(\d)<", newest) == ["1", "0"]
    assert "data-sample-newest" not in newest
    assert "data-sample-newest" in chosen
    assert f"/alpha/runs/{story.run.pk}/groups/?step=1" in chosen
    assert f"/alpha/runs/{story.run.pk}/groups/1/4/" in chosen
    assert alice_client.get(address, {"step": "x", "group": "-1"}).status_code == 200
