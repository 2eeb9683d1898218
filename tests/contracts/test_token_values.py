"""What a trainer tells of tokens is what a page is answered with."""

from pathlib import Path

import pytest
from django.urls import reverse

from dashboard.completions.models import GroupTokens
from dashboard.supervision.event_log import LogTailer, read_events
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_run
from tests.dashboard.supervision.factories import Launcher
from tests.trainer.tiny import (
    config_tree,
    only,
    run_trainer,
    write_config,
    write_model,
    write_rows,
)
from tests.trainer.tiny import read_events as read_lines
from trainer.model.token_values import NAMES


@pytest.fixture
def log(tmp_path) -> Path:
    model = write_model(tmp_path / "model")
    rows = write_rows(tmp_path / "rows.jsonl")
    tree = config_tree(
        model, rows, loss={"kl_coef": 0.1}, logging={"tokens_every_steps": 3}
    )
    out = tmp_path / "out"
    done = run_trainer("run", write_config(tmp_path, tree), "--out", out)
    assert done.returncode == 0, done.stderr
    return out / "events.jsonl"


@pytest.mark.django_db
def test_a_real_log_is_answered_number_for_number(log, team, alice, bob_client):
    run = Launcher(team, alice)()
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    tailer = LogTailer(log)
    # In batches that part groups from their tokens, as a log is read while it grows.
    while lines := tailer.read(max_bytes=4_096):
        ingest(claim, read_events(lines, attempt=1))
        tailer.advance(lines)

    reported = only(read_lines(log), "tokens_measured")

    assert GroupTokens.objects.count() == len(reported) == 6
    for event in reported:
        place = [run.team.slug, run.id, event["step"], event["prompt_index"]]
        found = bob_client.get(reverse("group_tokens", args=place)).json()
        for each, expected in zip(
            found["completions"], event["completions"], strict=True
        ):
            assert {name: each[name] for name in ("ids", "pieces", *NAMES)} == {
                name: expected.get(name) for name in ("ids", "pieces", *NAMES)
            }
            specials = [at for at, flag in enumerate(each["special"]) if flag]
            assert specials == expected["special"]
