from dashboard.runs.queue.hosts import Host, Needs
from dashboard.runs.queue.order import Slot, Start, Waiting, forecast

CPU = Host(name="cpu")
GPU = Host(name="gpu", num_gpus=1)


def wait(run_id: int, device: str = "cpu") -> Waiting:
    needs = Needs(device=device)
    return Waiting(run_id=run_id, team_id=1, needs=needs)


def test_runs_start_one_after_another_on_one_worker():
    slots = [Slot(host=CPU, free_in=60.0)]

    starts = forecast([wait(1), wait(2)], slots, {1: 100.0, 2: None})

    assert starts == {1: Start(seconds=60.0), 2: Start(seconds=160.0)}


def test_a_free_slot_is_taken_at_once():
    slots = [Slot(host=CPU, free_in=None), Slot(host=CPU, free_in=0.0)]

    assert forecast([wait(1)], slots, {}) == {1: Start(seconds=0.0)}


def test_a_run_waits_for_a_suitable_worker():
    slots = [Slot(host=CPU, free_in=0.0), Slot(host=GPU, free_in=90.0)]

    starts = forecast([wait(1, "cuda"), wait(2)], slots, {1: 5.0, 2: 5.0})

    assert starts == {1: Start(seconds=90.0), 2: Start(seconds=0.0)}


def test_after_a_run_of_unknown_length_starts_are_unknown():
    slots = [Slot(host=CPU, free_in=60.0)]

    starts = forecast([wait(1), wait(2)], slots, {1: None})

    assert starts[2] == Start(seconds=None)


def test_an_unknown_slot_makes_the_start_an_upper_bound():
    slots = [Slot(host=CPU, free_in=60.0), Slot(host=CPU, free_in=None)]

    assert forecast([wait(1)], slots, {}) == {1: Start(seconds=60.0, is_latest=True)}
