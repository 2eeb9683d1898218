"""A long run's sampler, timed: `pytest -m load tests/bench/bench_mismatch.py -s`."""

import statistics
import time

import numpy as np
import pytest
from django.urls import reverse

from cohort.mismatch import measure_gaps
from dashboard.completions.mismatch import pack_mismatch
from dashboard.completions.models import MismatchStep
from tests.bench.machine import heading, say, table
from tests.dashboard.analysis.mismatch.seeded import (
    measured,
    sampled,
    store_tokens,
)
from tests.dashboard.completions.factories import make_group, make_run
from trainer.events import MismatchMeasured

pytestmark = pytest.mark.load
NUM_STEPS, NUM_COMPLETIONS, GROUP, WIDTH = 1_000, 256, 8, 500
ADDRESSES = ("", "?step=500", "?step=500&share=changed")


def make_long_run(team):
    run = make_run(team, num_steps=NUM_STEPS, last_step=NUM_STEPS, seq=NUM_STEPS)
    rng = np.random.default_rng(0)
    sampling = sampled(rng, NUM_COMPLETIONS, WIDTH)
    prompts = list(range(NUM_COMPLETIONS // GROUP))
    rows = []
    for step in range(1, NUM_STEPS + 1):
        if step % 100 == 1:  # others have the same sums
            gaps = rng.normal(0, 0.02, sampling.shape)
            advantages = rng.normal(size=NUM_COMPLETIONS)
            tree = measure_gaps(
                sampling + gaps, sampling, np.ones_like(gaps), advantages
            ).tree()
        event = MismatchMeasured(
            line=1,
            attempt=1,
            time=0.0,
            step=step,
            age=step % 2,
            prompts=prompts,
            sizes=[GROUP] * len(prompts),
            advantages=advantages.tolist(),
            **tree,
        )
        rows.append(pack_mismatch(event, run.pk))
    MismatchStep.objects.bulk_create(rows, batch_size=100)
    for step in (1, *range(10, NUM_STEPS + 1, 10)):
        for prompt in prompts if step in (500, NUM_STEPS) else prompts[:2]:
            group = make_group(run, step, prompt, rewards=(1.0, 0.0) * (GROUP // 2))
            if prompt < 2:
                values = [
                    measured(gap=gaps[i], sampling=sampling[i], advantage=advantages[i])
                    for i in range(GROUP)
                ]
                store_tokens(group, values)
    return run


def test_a_long_runs_sampler_is_shown(team, alice_client):
    run = make_long_run(team)
    address = reverse("run_mismatch", args=[team.slug, run.pk])
    rows = []
    for query in ADDRESSES:
        seconds, busy = [], []
        for _ in range(7):
            started, began = time.perf_counter(), time.process_time()
            answer = alice_client.get(address + query)
            seconds.append(time.perf_counter() - started)
            busy.append(time.process_time() - began)
            assert answer.status_code == 200
        rows.append(
            (
                query or "newest",
                f"{1_000 * seconds[0]:.0f} ms",
                f"{1_000 * statistics.median(seconds[1:]):.0f} ms",
                f"{1_000 * statistics.median(busy[1:]):.0f} ms",
                f"{len(answer.content) / 1_000:.0f} kB",
            )
        )
    say(heading("pytest"))
    say(table(("page", "first", "median", "CPU", "size"), rows))
