"""Two nodes of two processes train as four of one node do, and as one process does."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.trainer.parallel.test_distributed import (
    KL,
    alone,
    assert_same_story,
    tree_of,
)
from tests.trainer.several import run_several
from tests.trainer.tiny import write_config
from trainer.config import ModelConfig
from trainer.model.optimizer import Optimizer
from trainer.model.policy import load_policy
from trainer.model.reference import FrozenReference
from trainer.parallel import fsdp
from trainer.parallel.world import Member, _num_nodes

CHECKPOINT = Path("checkpoints") / "step-000002-attempt-1"
FORMS = {"alone": (1, 1), "one-node": (4, 4), "two-nodes": (4, 2)}


def start(
    config: Path,
    name: str,
    form: str,
    *arguments: object,
    before: Callable[[int], None] | None = None,
) -> Path:
    count, per_node = FORMS[form]
    out = config.parent / name
    codes, output = run_several(
        *(count, "run", config, "--out", out, *arguments),
        output=config.parent / f"{name}.log",
        before=before,
        per_node=per_node,
    )
    assert codes == [0] * count, output
    return out


def keep_gradients(path: Path, num_shards: int, rank: int) -> None:
    """Write the first update's gradients, of the last process."""
    through, updates = Optimizer.gradient_norm, list[None]()

    def kept(optimizer: Optimizer) -> torch.Tensor:
        own = [p.grad.clone() for p in optimizer._masters]
        gradients = [fsdp.whole(gradient) for gradient in own]
        if num_shards > 1:
            assert {g.device_mesh.size() for g in own} == {num_shards}
        if not updates and rank in (0, 3):
            torch.save(gradients, path.with_suffix(f".{rank}"))
        updates.append(None)
        return through(optimizer)

    Optimizer.gradient_norm = kept


@pytest.fixture(scope="module")
def config(tmp_path_factory, model_folder, rows_path) -> Path:
    mixes = {"reference": {"mix_every_steps": 1, "mix_alpha": 0.5}}
    tree = tree_of(model_folder, rows_path, **KL | mixes)
    return write_config(tmp_path_factory.mktemp("nodes"), tree)


@pytest.fixture(scope="module")
def runs(config) -> dict[str, Path]:
    return {
        form: start(
            *(config, form, form),
            before=partial(keep_gradients, config.parent / form, FORMS[form][1]),
        )
        for form in FORMS
    }


@pytest.mark.slow
def test_two_nodes_train_as_one_does(runs):
    assert_same_story(runs["one-node"], runs["alone"])
    assert_same_story(runs["two-nodes"], runs["alone"])


@pytest.mark.slow
def test_each_node_has_the_gradients_of_one_process(runs, config):
    expected = torch.load(config.parent / "alone.0")

    for kept in ("one-node.0", "two-nodes.0", "two-nodes.3"):
        for gradient, alike in zip(
            torch.load(config.parent / kept), expected, strict=True
        ):
            torch.testing.assert_close(gradient, alike, rtol=1e-6, atol=1e-6)
    ours, theirs = (torch.load(config.parent / f"two-nodes.{rank}") for rank in (0, 3))
    assert all(map(torch.equal, ours, theirs)), "else nodes would drift apart"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("began", "ended"), [("one-node", "two-nodes"), ("two-nodes", "one-node")]
)
def test_a_checkpoint_of_one_form_is_resumed_by_the_other(began, ended, runs, config):
    saved = runs[began] / CHECKPOINT
    assert (saved / "reference").is_dir()

    out = start(config, f"from-{began}", ended, "--resume-from", saved)

    assert_same_story(out, runs[began], after=2)


def compare_with_whole(model: Path, rank: int) -> None:
    """Hold a reference's log-probs against those of a model in one piece."""
    through = FrozenReference.add_logprobs

    def compared(reference: FrozenReference, micros, *, temperature: float) -> None:
        through(reference, micros, temperature=temperature)
        parts = reference.policy.model.parameters()
        assert all(hasattr(part, "device_mesh") for part in parts)
        whole = load_policy(ModelConfig(path=str(model), dtype="float32"))
        whole.form = reference.policy.form
        for micro in micros:
            with torch.no_grad():
                expected, _ = whole.logprobs(micro, temperature=temperature)
            assert torch.equal(micro.reference_logprobs, expected)

    FrozenReference.add_logprobs = compared


@pytest.mark.slow
def test_a_reference_in_parts_has_the_log_probs_of_the_whole(
    model_folder, rows_path, tmp_path
):
    config = write_config(tmp_path, tree_of(model_folder, rows_path, **KL))

    codes, output = run_several(
        *(2, "run", config, "--out", tmp_path / "two"),
        output=tmp_path / "log",
        before=partial(compare_with_whole, model_folder),
    )

    assert codes == [0, 0], output


def run_out_in_reference(rank: int) -> None:
    """Let memory run out in the second process, within the reference's first pass."""
    through, passes = fsdp._Collective.__call__, list[None]()
    plain = FrozenReference.add_logprobs
    inside = list[None]()

    def asked(reference: FrozenReference, micros, *, temperature: float) -> None:
        inside.append(None)
        try:
            plain(reference, micros, temperature=temperature)
        finally:
            inside.clear()

    def gathered(*inputs, **options):
        if inside and rank == 1:
            passes.append(None)
            if len(passes) == 3:  # behind the root and the first layer
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return through(*inputs, **options)

    FrozenReference.add_logprobs = asked
    fsdp._Collective.__call__ = gathered


@pytest.mark.slow
def test_no_one_waits_for_a_reference_that_runs_out_of_memory(
    model_folder, rows_path, tmp_path
):
    optim = {"num_steps": 2, "micro_batch_tokens": 144}
    tree = tree_of(model_folder, rows_path, **KL, optim=optim)
    config = write_config(tmp_path, tree)

    codes, output = run_several(
        *(2, "run", config, "--out", tmp_path / "two"),
        output=tmp_path / "log",
        before=run_out_in_reference,
    )

    assert codes == [0, 0], output
    assert (
        "repeated with micro-batches of at most 72"
        in output + (tmp_path / "two" / "events.jsonl").read_text()
    )
    assert_same_story(tmp_path / "two", alone(config, "one"))


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([(0, 2), (1, 2), (0, 2), (1, 2)], 2),
        ([(0, 1), (0, 1)], 1),
        ([(0, 2), (1, 2), (0, 1)], 1),  # one node has fewer
        ([(0, 2), (0, 2), (1, 2), (1, 2)], 1),  # ranks go around the nodes
    ],
)
def test_nodes_count_where_each_has_as_many_ranks_in_a_row(places, expected):
    members = [Member("host", 1, *place) for place in places]

    assert _num_nodes(members) == expected
