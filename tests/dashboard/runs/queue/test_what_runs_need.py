from __future__ import annotations

import pytest

from dashboard.runs.queue.hosts import Host, Needs, describe_lack, describe_missing
from tests.dashboard.runs.launching import make_config
from trainer.config import PackageNeed

CPU = Host(name="cpu")
ONE = Host(name="one", num_gpus=1)
FOUR = Host(name="four", num_gpus=4)


@pytest.mark.parametrize(
    ("needs", "suits"),
    [
        (Needs(device="cpu"), {"cpu", "one", "four"}),
        (Needs(device="cuda"), {"one", "four"}),
        (Needs(device="cuda", num_gpus=2), {"four"}),
        (Needs(device="auto"), {"cpu", "one", "four"}),
        # Several processes of one GPU each would not start where there is one GPU.
        (Needs(device="auto", num_gpus=2), {"cpu", "four"}),
    ],
)
def test_a_worker_takes_what_it_has_the_gpus_for(needs: Needs, suits: set[str]) -> None:
    assert {host.name for host in (CPU, ONE, FOUR) if host.may_take(needs)} == suits


@pytest.mark.parametrize(
    ("takes", "taken"),
    [
        ("any", ["none", "one", "two"]),
        ("cpu", ["none"]),
        ("gpu", ["one"]),
        ("gpus", ["two"]),
    ],
)
def test_a_class_keeps_a_worker_for_its_runs(takes: str, taken: list[str]) -> None:
    host = Host(name="four", num_gpus=4, takes=takes)
    wanted = {
        "none": Needs(device="cpu"),
        "one": Needs(device="cuda"),
        "two": Needs(device="auto", num_gpus=2),
    }

    assert [name for name, needs in wanted.items() if host.may_take(needs)] == taken


def test_needs_are_read_from_the_configuration() -> None:
    plain = make_config()
    spread = make_config(
        model={"path": "m", "device": "cuda"}, distributed={"num_processes": 4}
    )

    assert Needs.of(plain) == Needs(device="auto", num_gpus=1)
    assert Needs.of(spread) == Needs(device="cuda", num_gpus=4)


def test_a_run_of_an_older_version_needs_what_is_usual() -> None:
    assert Needs.of({"model": None}) == Needs(device="auto", num_gpus=1)


def test_what_no_worker_has_is_said_with_what_to_do() -> None:
    lack = describe_lack(Needs(device="cuda", num_gpus=2), [CPU])

    assert lack.startswith("It needs 2 GPUs; the worker here has none. Start one on a")
    assert "clone the run with fewer GPUs" in lack
    assert "largest worker here has 1" in describe_lack(
        Needs(device="cuda", num_gpus=2), [CPU, ONE]
    )


def test_workers_that_could_but_take_other_runs_are_named() -> None:
    kept = Host(name="big", num_gpus=4, takes="gpus")

    lack = describe_lack(Needs(device="cuda"), [CPU, kept])

    assert "big: runs on several GPUs" in lack
    assert "COHORT_WORKER_CLASS" in lack


def test_without_a_worker_the_lack_is_a_worker() -> None:
    assert "No worker is alive" in describe_lack(Needs(), [])
    assert describe_lack(Needs(), [CPU]) == ""


NEED = PackageNeed(package="peft", setting="model.lora_rank = 8", otherwise="0")


def test_of_many_workers_that_lack_a_package_some_are_named() -> None:
    lacking = [Host(name=f"w{n}", packages=frozenset()) for n in range(5)]
    able = Host(name="able", packages=frozenset({"peft"}))

    [told] = describe_missing([NEED], Needs(), [able, *lacking])

    assert "w0, w1, w2 and 2 more" in told
    assert "able" not in told


def test_a_worker_that_would_not_take_the_run_may_lack_anything() -> None:
    other = Host(name="cpu", packages=frozenset())

    assert describe_missing([NEED], Needs(device="cuda"), [other]) == []
