from dashboard.runs.queue.hosts import (
    Host,
    Needs,
    Ranks,
    describe_lack,
    describe_missing,
)
from tests.dashboard.runs.launching import make_config
from trainer.config import PackageNeed

CPU = Host(name="cpu")
ONE = Host(name="one", num_gpus=1)
FOUR = Host(name="four", num_gpus=4)


def test_a_worker_takes_what_it_has_the_gpus_for():
    for needs, suits in (
        (Needs(device="cpu"), ["cpu", "one", "four"]),
        (Needs(device="cuda"), ["one", "four"]),
        (Needs(device="cuda", num_gpus=2), ["four"]),
        (Needs(device="auto"), ["cpu", "one", "four"]),
        # Several processes of one GPU each would not start where there is one GPU.
        (Needs(device="auto", num_gpus=2), ["cpu", "four"]),
    ):
        able = [host.name for host in (CPU, ONE, FOUR) if host.may_take(needs)]
        assert able == suits, needs


def test_a_class_keeps_a_worker_for_its_runs():
    wanted = {
        "none": Needs(device="cpu"),
        "one": Needs(device="cuda"),
        "two": Needs(device="auto", num_gpus=2),
    }
    for takes, taken in (
        ("any", ["none", "one", "two"]),
        ("cpu", ["none"]),
        ("gpu", ["one"]),
        ("gpus", ["two"]),
    ):
        host = Host(name="four", num_gpus=4, takes=takes)
        found = [name for name, needs in wanted.items() if host.may_take(needs)]
        assert found == taken, takes


def test_needs_are_read_from_the_configuration():
    plain = make_config()
    spread = make_config(
        model={"path": "m", "device": "cuda"}, distributed={"num_processes": 4}
    )

    cluster = make_config(
        model={"path": "m", "device": "cuda"},
        distributed={"where": "ray", "num_nodes": 2, "num_processes": 8},
    )

    ranks = Ranks(num_nodes=2, per_node=8, device="cuda")
    assert Needs.of(cluster) == Needs(device="cpu", ranks=ranks)  # nodes have the GPUs
    assert Needs.of(plain) == Needs(device="auto", num_gpus=1)
    assert Needs.of(spread) == Needs(device="cuda", num_gpus=4)


def test_a_config_of_an_older_version_has_default_needs():
    assert Needs.of({"model": None}) == Needs(device="auto", num_gpus=1)


def test_missing_gpus_are_described_with_the_available_ones():
    two = Needs(device="cuda", num_gpus=2)

    assert "2 GPUs" in describe_lack(two, [CPU])
    assert "has none" in describe_lack(two, [CPU])
    assert "has 1" in describe_lack(two, [CPU, ONE])
    assert describe_lack(Needs(), [CPU]) == ""
    assert describe_lack(Needs(), []) not in ("", describe_lack(two, [CPU]))


def test_capable_workers_of_another_class_are_named():
    kept = Host(name="big", num_gpus=4, takes="gpus")

    lack = describe_lack(Needs(device="cuda"), [CPU, kept])

    assert "big: " in lack
    assert "COHORT_WORKER_CLASS" in lack


NEED = PackageNeed(package="peft", setting="model.lora_rank = 8", otherwise="0")


def test_some_of_many_workers_without_a_package_are_named():
    lacking = [Host(name=f"w{n}", packages=frozenset()) for n in range(5)]
    able = Host(name="able", packages=frozenset({"peft"}))

    [message] = describe_missing([NEED], Needs(), [able, *lacking])

    assert "w0, w1, w2 and 2 more" in message
    assert "able" not in message


def test_unsuitable_workers_need_no_packages():
    other = Host(name="cpu", packages=frozenset())

    assert describe_missing([NEED], Needs(device="cuda"), [other]) == []
