"""Training a tiny model, and storing what the run measured."""

from pathlib import Path
from typing import Any

from dashboard.accounts.models import Team
from dashboard.completions.mismatch import pack_mismatch
from dashboard.completions.models import GroupTokens
from dashboard.completions.tokens import pack_tokens
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import (
    START,
    make_config,
    make_group,
    make_run,
)
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_rows,
)
from trainer.events import MismatchMeasured, TokensMeasured

SIZE = {"prompts_per_step": 8, "group_size": 8, "max_new_tokens": 24}


def train_and_store(
    team: Team, out: Path, weights: Path, rollout: dict[str, Any], **parts: Any
) -> Run:
    """Train the model of a folder, and store the gaps and tokens of the run."""
    tree = config_tree(
        weights,
        write_rows(out / "rows.jsonl"),
        rollout=SIZE | rollout,
        evaluation={"every_steps": 0},
        logging={"tokens_every_steps": 1},
        **parts,
    )
    done = run_trainer("run", write_config(out, tree), "--out", out / "out")
    assert done.returncode == 0, done.stderr
    events = read_events(out / "out" / "events.jsonl")
    settings = {"path": str(weights)} | parts.get("model", {})
    config = make_config(rollout=rollout, loss=parts.get("loss", {}), model=settings)
    last_step = only(events, "step_finished")[-1]["step"]
    run = make_run(team, config=config, last_step=last_step)
    device = only(events, "run_started")[0]["device"]
    run.events.create(
        attempt=1,
        line=1,
        seq=1,
        step=0,
        time=START,
        type="run_started",
        body={"device": device},
    )
    for event in only(events, "mismatch_measured"):
        pack_mismatch(MismatchMeasured.model_validate(event), run.pk).save()
    for event in only(events, "tokens_measured"):
        group = make_group(run, event["step"], prompt_index=event["prompt_index"])
        values = TokensMeasured.model_validate(event).completions
        GroupTokens.objects.create(group=group, packed=pack_tokens(values))
    return run
