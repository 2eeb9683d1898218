"""A real run scored again by its own recipe gives what the trainer gave."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard.accounts.models import Team, User
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.analysis.rescoring.results import is_same_advantage, read_columns
from dashboard.analysis.rescoring.services import select_steps, start_rescoring
from dashboard.datasets.row import Row
from dashboard.runs.models import Run
from dashboard.supervision.event_log import LogTailer, read_events
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_run
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.jobs.working import do, take
from tests.dashboard.supervision.factories import Launcher
from tests.trainer.tiny import (
    config_tree,
    run_trainer,
    write_config,
    write_model,
    write_rows,
)

# Digits of at most 12 characters: rewards that differ within most groups.
SHORT = {
    "name": "short",
    "kind": "length",
    "params": {"maximum": 2, "soft_edge": 12},
    "weight": 0.3,
    "schedule": {"points": [{"step": 4, "weight": 1.0}]},
}
DIGITS = {
    "name": "digits",
    "kind": "regex",
    "params": {"pattern": "[0-9][0-9]"},
    "weight": 0.7,
    "clip": {"low": 0.1, "high": 0.9},
    "only_if": {"rule": "short", "at_least": 0.2},
}
PLUS = {"name": "plus", "kind": "contains", "params": {"phrases": ["+"]}, "weight": 0.4}
VARIANTS: dict[str, dict[str, Any]] = {
    "weights that change, a clip and a gate": {
        "reward": {"recipe": {"rules": [SHORT, DIGITS, PLUS]}},
        "advantage": {
            "baseline": "length_weighted",
            "whiten": "tokens",
            "weight": 0.5,
        },
    },
    "groups that are left out, and a penalty for length": {
        "rollout": {"dynamic_sampling": "refill", "group_size": 2},
        "reward": {
            "recipe": {"rules": [PLUS]},
            "overlong_buffer_tokens": 6,
        },
        "advantage": {"baseline": "leave_one_out", "scale": "batch_std"},
    },
    "rules that are normalised one by one, and whitened": {
        "reward": {
            "recipe": {"rules": [SHORT, DIGITS], "combine": "normalize_then_sum"},
            "overlong_buffer_tokens": 6,
            "overlong_penalty": 0.5,
        },
        "advantage": {"whiten": True},
    },
    "phases of their own recipes": {
        "phases": [
            {"name": "first", "num_steps": 3},
            {
                "name": "second",
                "num_steps": 3,
                "changes": {
                    "reward": {"recipe": {"rules": [PLUS, SHORT]}},
                    "advantage": {"credit": "pass_at_k", "pass_k": 2},
                },
            },
        ],
    },
}


def train(folder: Path, team: Team, alice: User, parts: dict[str, Any]) -> Run:
    rows = write_rows(folder / "rows.jsonl")
    phases = parts.get("phases")
    tree = config_tree(
        write_model(folder / "model"),
        rows,
        **{name: value for name, value in parts.items() if name != "phases"},
    )
    tree |= {"phases": phases} if phases else {}
    out = folder / "out"
    done = run_trainer("run", write_config(folder, tree), "--out", out)
    assert done.returncode == 0, done.stderr
    launcher = Launcher(team, alice)
    launcher.dataset_version = store_dataset(
        team,
        [Row(**json.loads(line)) for line in rows.read_text().splitlines()],
        name="sevens",
        mapping={"prompt": "prompt", "answer": "answer", "columns": ["n"]},
        user=alice,
    )
    run = launcher(**tree)
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    tailer = LogTailer(out / "events.jsonl")
    while lines := tailer.read():
        ingest(claim, read_events(lines, attempt=1))
        tailer.advance(lines)
    return run


@pytest.mark.django_db
@pytest.mark.parametrize("parts", VARIANTS.values(), ids=VARIANTS)
def test_the_same_recipe_gives_the_same_numbers(parts, tmp_path, team, alice):
    run = train(tmp_path, team, alice, parts)
    start_rescoring(
        team=team,
        user=alice,
        run=run,
        selection=select_steps(run, None, None, 1),
        recipe=None,
    )

    do(take("rescoring"))

    rescoring = Rescoring.objects.get()
    assert (rescoring.state, rescoring.error) == ("done", "")
    columns = read_columns(rescoring)
    found, groups = columns.completions, columns.groups
    assert len(found) == rescoring.num_completions > 40
    assert len(set(found["old"].tolist())) > 1
    leaves_out = "dynamic_sampling" in parts.get("rollout", {})
    assert groups["was_trained"].all() == (not leaves_out)
    assert found["new"].tolist() == found["old"].tolist()  # to the last bit
    assert np.count_nonzero(found["old_advantage"]) > 4
    assert is_same_advantage(found["old_advantage"], found["new_advantage"]).all()
    assert groups["new_signal"].tolist() == groups["old_signal"].tolist()
    assert groups["is_trained"].tolist() == groups["was_trained"].tolist()
    assert rescoring.result["num_moved"] == rescoring.result["num_reordered"] == 0
    assert all(rule["num_changed"] == 0 for rule in rescoring.result["rules"])
