"""The order in which free workers take runs, against a model that picks one by one."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from dashboard.runs.queue.hosts import Needs
from dashboard.runs.queue.order import Waiting, take_turns

PRIORITIES = st.sampled_from([-1, 0, 1])
TEAMS = st.integers(1, 4)


def make(run_id: int, *, team: int = 1, priority: int = 0) -> Waiting:
    return Waiting(run_id=run_id, team_id=team, priority=priority, needs=Needs())


@st.composite
def lines(draw: st.DrawFn) -> list[Waiting]:
    rows = draw(st.lists(st.tuples(TEAMS, PRIORITIES), max_size=12))
    places = draw(st.permutations(range(1, len(rows) + 1)))
    return [
        make(place, team=team, priority=priority)
        for place, (team, priority) in zip(places, rows, strict=True)
    ]


def pick_one_by_one(waiting: list[Waiting], held: Mapping[int, int]) -> list[Waiting]:
    left, counts, order = list(waiting), Counter(held), []
    while left:
        firsts = []
        for team in {one.team_id for one in left}:
            own = [one for one in left if one.team_id == team]
            top = max(one.priority for one in own)
            firsts.append(
                min((o for o in own if o.priority == top), key=lambda o: o.run_id)
            )
        fewest = min(counts[one.team_id] for one in firsts)
        fair = [one for one in firsts if counts[one.team_id] == fewest]
        top = max(one.priority for one in fair)
        chosen = min((o for o in fair if o.priority == top), key=lambda o: o.run_id)
        order.append(chosen)
        left.remove(chosen)
        counts[chosen.team_id] += 1
    return order


@given(lines(), st.dictionaries(TEAMS, st.integers(0, 5)))
def test_turns_equal_picking_runs_one_by_one(waiting, held):
    assert take_turns(waiting, held) == pick_one_by_one(waiting, held)


def test_a_team_with_many_urgent_runs_does_not_shut_out_another():
    urgent = [make(place, team=1, priority=1) for place in (1, 2, 3)]
    patient = make(4, team=2, priority=-1)

    order = take_turns([*urgent, patient], {})

    assert [one.run_id for one in order] == [1, 4, 2, 3]


def test_a_team_with_workers_waits_for_a_team_without():
    order = take_turns([make(1, team=1), make(2, team=2)], {1: 1})

    assert [one.run_id for one in order] == [2, 1]
