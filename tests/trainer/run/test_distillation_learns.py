import statistics

import pytest

from tests.bench.bench_distillation import (
    REWARD,
    make_reader,
    make_teacher,
    privileged_parts,
    read_metrics,
    taught_parts,
    train,
)

pytestmark = pytest.mark.slow(minutes=10)
NUM_STEPS = 20


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return make_teacher(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return make_reader(tmp_path_factory.mktemp("reader"))


@pytest.mark.parametrize("seed", range(3))
def test_a_student_reaches_half_by_the_distance_to_its_teacher(teacher, seed, tmp_path):
    parts = taught_parts(teacher)

    folder = train(tmp_path, seed=seed, num_steps=NUM_STEPS, **parts)

    rewards, distances = (
        read_metrics(folder, REWARD),
        read_metrics(folder, "distill/kl"),
    )
    assert rewards[0] < 0.4
    assert rewards[NUM_STEPS] > 0.5
    last = [distances[step] for step in range(NUM_STEPS - 2, NUM_STEPS + 1)]
    assert statistics.mean(last) < distances[1] / 2


def test_a_student_improves_by_a_teacher_that_reads_the_solution(reader, tmp_path):
    """The distance stays, for the student cannot read it."""
    parts = privileged_parts(reader)

    folder = train(tmp_path, seed=0, num_steps=NUM_STEPS, **parts)

    rewards = read_metrics(folder, REWARD)
    assert rewards[0] < 0.4
    assert rewards[NUM_STEPS] > rewards[0] + 0.15
