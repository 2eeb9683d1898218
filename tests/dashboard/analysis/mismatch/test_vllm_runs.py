"""The page of the gap of runs that vLLM samples for, on a CPU."""

import json
import re

import pytest
from django.urls import reverse

from tests.dashboard.analysis.mismatch.trained import train_and_store
from tests.trainer.tiny import only, read_events
from tests.trainer.vllm_models import CLOSE, write_wide_model

# The warnings are vLLM's own.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

# Mean |d| in nats a token: bfloat16's logits have 8 bits, so it has a gap of its own.
GAPS = {"float32": (1e-9, CLOSE), "bfloat16": (1e-3, 0.03)}


@pytest.mark.parametrize("dtype", GAPS)
def test_the_page_shows_the_gap_of_vllm(dtype, team, alice_client, tmp_path):
    run = train_and_store(
        team,
        tmp_path,
        write_wide_model(tmp_path / "model"),
        {"engine": "vllm", "cache_gib": 0.125},
        model={"device": "cpu", "dtype": dtype},
        optim={"num_steps": 3},
    )

    response = alice_client.get(reverse("run_mismatch", args=["alpha", run.pk]))

    lab = response.context["lab"]
    smallest, largest = GAPS[dtype]
    assert lab.step == 3
    assert smallest < lab.evidence.mean < largest
    assert lab.evidence.incomparable == ""
    # by the CPU, bfloat16's sums may just pass the bound of rounding
    kinds = {"float32": {"rounding"}, "bfloat16": {"rounding", "sequence"}}
    assert lab.advice.kind in kinds[dtype]
    assert lab.rows[0].key == "today"
    assert lab.rows[0].num_sequences == 64
    # what the page draws is what the trainer measured in its step
    text = response.content.decode()
    [figures] = re.findall(r'<script id="mismatch-figures"[^>]*>(.*?)</script>', text)
    [drawn] = (
        trace["y"]
        for trace in json.loads(figures)["steps"]["data"]
        if trace["name"] == "mean |d|"
    )
    events = read_events(tmp_path / "out" / "events.jsonl")
    steps = [step["metrics"] for step in only(events, "step_finished")]
    assert drawn == pytest.approx([m["mismatch/mean"] for m in steps], rel=1e-2)
