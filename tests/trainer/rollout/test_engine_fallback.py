"""What samples on a GPU gives way to a slower way when it fails, and the run goes on.

No GPU is needed: the branches of one are taken on a CPU.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.trainer.rollout.test_rollout import TEXTS, ids_of, requests_of, sample
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.rollout import builtin as transformers_engine
from trainer.rollout import decoder
from trainer.rollout import decoder as graphs
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import OnGroup, SamplingParams, Slowed
from trainer.rollout.llama import LlamaDecoder

PARAMS = SamplingParams(max_new_tokens=30, temperature=1.0)


@pytest.fixture
def gpu_branches(monkeypatch) -> None:
    for module in (decoder, transformers_engine):
        monkeypatch.setattr(module, "is_gpu", lambda _device: True)
    # done each time instead of recorded and replayed
    monkeypatch.setattr(graphs, "record", lambda run: run)


@pytest.fixture
def broken_decoder(monkeypatch) -> list[int]:
    """The engine's own decoder fails from its 40th token on; how often it was asked."""
    asked: list[int] = []
    forward = LlamaDecoder.forward

    def failing(self: LlamaDecoder, *args: Any, **options: Any) -> torch.Tensor:
        asked.append(len(asked))
        if len(asked) >= 40:
            raise RuntimeError("CUDA error: an illegal instruction\nmore of it")
        return forward(self, *args, **options)

    monkeypatch.setattr(LlamaDecoder, "forward", failing)
    return asked


@pytest.mark.usefixtures("gpu_branches")
@pytest.mark.parametrize("max_batch_rows", [512, 6])
def test_ended_rows_are_looked_for_less_often_with_the_same_completions(
    max_batch_rows, policy, monkeypatch
) -> None:
    requests = requests_of(policy, 8)
    seldom = sample(policy, requests, max_new_tokens=60, max_batch_rows=max_batch_rows)
    for module in (decoder, transformers_engine):
        monkeypatch.setattr(module, "is_gpu", lambda _device: False)
    always = sample(policy, requests, max_new_tokens=60, max_batch_rows=max_batch_rows)

    assert ids_of(seldom) == ids_of(always)
    lengths = {len(ids) for group in ids_of(always) for ids in group}
    assert {length % 16 for length in lengths} - {0}  # some end between two looks
    for found, expected in zip(seldom, always, strict=True):
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.text, ours.end_reason) == (theirs.text, theirs.end_reason)
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("gpu_branches")
def test_a_decoder_that_fails_gives_way_to_transformers(policy, broken_decoder) -> None:
    requests = requests_of(policy, 4)
    engine = TransformersEngine(policy, max_batch_rows=4)
    reported: list[Slowed] = []
    engine.on_slowed = reported.append
    groups: list[int] = []
    on_group: OnGroup = lambda index, _completions: groups.append(index)  # noqa: E731

    found = engine.sample(requests, PARAMS, on_group=on_group)
    engine.sample(requests, PARAMS)

    plain = TransformersEngine(policy, max_batch_rows=4, decoding="plain")
    assert ids_of(found) == ids_of(plain.sample(requests, PARAMS))
    # by graphs, then kernel by kernel, then never again
    assert len(broken_decoder) == 41
    assert sorted(groups) == list(range(len(requests)))  # each once
    assert reported == [
        Slowed(
            code="engine_fallback",
            reason="RuntimeError: CUDA error: an illegal instruction",
            way=way,
        )
        for way in (
            "Cohort's decoder without CUDA graphs",
            "transformers' forward pass",
        )
    ]


@pytest.mark.usefixtures("gpu_branches")
def test_a_way_that_fails_while_it_is_checked_is_left(policy, monkeypatch):
    requests = requests_of(policy, 4)
    engine = TransformersEngine(policy, max_batch_rows=4)
    reported: list[Slowed] = []
    engine.on_slowed = reported.append
    measured = engine.measure_gap

    def measure(*given: Any) -> float:
        if engine._ways[0] == "lean":
            raise RuntimeError("no kernel image is available")
        return 0.5 if engine._ways[0] == "graph" else measured(*given)

    monkeypatch.setattr(engine, "measure_gap", measure)

    engine.sample(requests, PARAMS)

    assert engine._ways == ["plain"]
    assert [each.way for each in reported] == ["transformers' forward pass"]


@pytest.mark.usefixtures("gpu_branches")
@pytest.mark.parametrize("is_later", [False, True])
def test_a_decoder_that_computes_something_else_is_left(
    is_later, policy, monkeypatch
) -> None:
    requests = requests_of(policy, 4)
    engine = TransformersEngine(policy, max_batch_rows=64)
    reported: list[Slowed] = []
    engine.on_slowed = reported.append
    if is_later:  # stale weights, which show when there are new ones
        engine.sample(requests, PARAMS)
        assert reported == []
    forward = LlamaDecoder.forward
    monkeypatch.setattr(
        LlamaDecoder,
        "forward",
        lambda self, *args, **options: 1.5 * forward(self, *args, **options),
    )
    engine.sync_weights()
    groups: list[int] = []

    found = engine.sample(
        requests, PARAMS, on_group=lambda index, _: groups.append(index)
    )

    plain = TransformersEngine(policy, max_batch_rows=64, decoding="plain")
    assert ids_of(found) == ids_of(plain.sample(requests, PARAMS))
    assert sorted(groups) == list(range(len(requests)))
    (slowed,) = reported
    assert slowed.code == "engine_fallback"
    assert slowed.way.startswith("transformers'")


@pytest.mark.usefixtures("gpu_branches")
def test_unrecordable_steps_run_kernel_by_kernel(policy, monkeypatch) -> None:
    def refuse(_run: object) -> None:
        raise RuntimeError("CUDA error: operation not permitted when capturing")

    monkeypatch.setattr(graphs, "record", refuse)
    requests = requests_of(policy, 4)
    engine = TransformersEngine(policy, max_batch_rows=512)
    reported: list[Slowed] = []
    engine.on_slowed = reported.append

    found = engine.sample(requests, PARAMS)

    assert ["CUDA graphs" in slowed.way for slowed in reported] == [True]
    assert ids_of(found) == ids_of(sample(policy, requests))


@pytest.mark.usefixtures("gpu_branches")
def test_a_recording_without_memory_is_tried_with_fewer_rows(
    policy, monkeypatch
) -> None:
    def record(run: Callable[[], None]) -> Callable[[], None]:
        step: Any = run.__self__  # type: ignore[attr-defined]  # a bound method
        if len(step._chosen) > 6:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            finally:
                raise RuntimeError("CUDA error: the capture was broken off")
        return run

    monkeypatch.setattr(graphs, "record", record)
    requests = requests_of(policy, 4)
    engine = TransformersEngine(policy, max_batch_rows=512)
    reported: list[Slowed] = []
    engine.on_slowed = reported.append

    found = engine.sample(requests, PARAMS)

    assert [(each.code, each.rows) for each in reported] == [
        ("out_of_memory", 10),
        ("out_of_memory", 4),
    ]
    assert ids_of(found) == ids_of(sample(policy, requests))


@pytest.mark.usefixtures("gpu_branches")
def test_groups_are_reported_while_no_row_leaves(policy, monkeypatch) -> None:
    requests = requests_of(policy, 2)[:3]
    stops = [60, 60, 2, 2, 20, 20]  # tokens of each row; the shortest prompt's first
    index = 0

    def drawn(
        logits: torch.Tensor, uniform: torch.Tensor, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal index
        index += 1
        assert len(logits) == len(stops)
        ids = [policy.eos_ids[0] if stop == index else 5 for stop in stops]
        return torch.tensor(ids), torch.zeros(len(ids))

    monkeypatch.setattr(decoder, "draw_tokens", drawn)
    reported: list[tuple[str, int]] = []
    engine = TransformersEngine(policy, max_batch_rows=512)
    engine.check.is_due = False  # these log-probs are made up

    found = engine.sample(
        requests,
        SamplingParams(max_new_tokens=70, temperature=1.0),
        on_group=lambda n, _: reported.append((TEXTS[n], index)),
    )

    assert reported == [(TEXTS[0], 16), (TEXTS[2], 32), (TEXTS[1], 64)]
    assert [group[0].num_tokens for group in found] == [2, 60, 20]


@pytest.mark.usefixtures("gpu_branches")
def test_the_last_way_that_fails_is_an_error(policy, monkeypatch) -> None:
    def broken(*_args: Any, **_options: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal instruction")

    monkeypatch.setattr(decoder, "draw_tokens", broken)

    with pytest.raises(RuntimeError, match="illegal instruction"):
        sample(policy, requests_of(policy, 2))


def test_on_a_cpu_nothing_is_tried_again(policy, broken_decoder):
    with pytest.raises(RuntimeError, match="illegal instruction"):
        sample(policy, requests_of(policy, 4), max_new_tokens=60)

    assert len(broken_decoder) == 40


@pytest.mark.usefixtures("gpu_branches")
def test_a_listeners_error_is_not_taken_for_the_engines(policy) -> None:
    engine = TransformersEngine(policy, max_batch_rows=512)
    reported: list[Slowed] = []
    engine.on_slowed = reported.append

    def listen(_place: int, _completions: object) -> None:
        raise RuntimeError("the reward workers are gone")

    with pytest.raises(RuntimeError, match="reward workers"):
        engine.sample(requests_of(policy, 2), PARAMS, on_group=listen)

    assert reported == []


@pytest.mark.usefixtures("gpu_branches", "broken_decoder")
@pytest.mark.parametrize(
    "rollout", [{}, pytest.param({"one_step_off": True}, marks=pytest.mark.slow)]
)
def test_a_run_warns_and_trains_to_its_end(
    rollout, model_folder, rows_path, tmp_path
) -> None:
    tree = config_tree(model_folder, rows_path, rollout=rollout)
    if rollout:
        tree["loss"] = {"importance_correction": "token_truncate"}

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    events = read_events(tmp_path / "out" / "events.jsonl")
    warnings = only(events, "warned")
    first, second = [e for e in warnings if e["code"] == "engine_fallback"]
    for warned in (first, second):
        assert "illegal instruction" in warned["message"]
    assert [event["step"] for event in only(events, "step_finished")] == [*range(1, 7)]
    assert "Traceback" in done.stderr
