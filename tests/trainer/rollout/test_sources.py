"""Who writes the completions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import config_tree
from trainer.config import RunConfig
from trainer.data import Prompt, PromptRenderer, Row
from trainer.model.policy import Policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.decoder import Decoder, DecodingMethod, make_decoder
from trainer.rollout.engine import OnGroup, Request, SamplingParams
from trainer.rollout.episodes import EngineSource
from trainer.rollout.select import make_engine
from trainer.rollout.sources import DatasetSource, make_source
from trainer.types import Rollout

SFT = {"source": "dataset", "group_size": 1, "max_new_tokens": 12}


def config_of(model_folder: Path, **parts: Any) -> RunConfig:
    if parts["rollout"].get("source") == "dataset":
        parts["advantage"] = {"credit": "ones"}
    tree = config_tree(model_folder, Path("rows.jsonl"), **parts)
    return RunConfig.model_validate(tree)


def prompts_of(
    policy: Policy, config: RunConfig, *columns: dict[str, Any]
) -> list[Prompt]:
    renderer = PromptRenderer(policy.tokenizer, config.data)
    return [
        renderer.render(Row(index=n, prompt=f"{n}+1=", answer=None, columns=each))
        for n, each in enumerate(columns)
    ]


class Recorder:
    """An engine that remembers what it was asked."""

    tokenizer: Any = None

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.params: SamplingParams | None = None
        self.num_syncs = 0

    def sample(
        self, requests: Sequence[Request], params: SamplingParams, *, on_group: OnGroup
    ) -> list[tuple[Rollout, ...]]:
        self.requests, self.params = list(requests), params
        return [() for _ in requests]

    def sync_weights(self) -> None:
        self.num_syncs += 1


def test_a_group_is_sampled_with_its_own_seeds(policy, model_folder):
    rollout = {"group_size": 3, "top_p": 0.9, "top_k": 7, "temperature": 0.8}
    config = config_of(model_folder, rollout=rollout)
    prompts = prompts_of(policy, config, {}, {})
    engine = Recorder()
    source = EngineSource(engine, config)

    seeds = []
    for step in (1, 2):
        source.complete(prompts, step)
        seeds += [seed for request in engine.requests for seed in request.seeds]
    source.complete(prompts[1:], 2)

    assert engine.params == SamplingParams(
        max_new_tokens=12, temperature=0.8, top_p=0.9, top_k=7
    )
    assert len(set(seeds)) == 12
    # the prompts beside it do not matter
    assert list(engine.requests[0].seeds) == seeds[-3:]
    source.sync_weights()
    assert engine.num_syncs == 1


def test_the_starting_model_does_not_move_with_the_policy(policy, model_folder):
    config = config_of(model_folder, rollout={"source": "start"})
    prompts = prompts_of(policy, config, {}, {})
    engine = TransformersEngine(policy, max_batch_rows=8)
    source = make_source(config, policy=policy, engine=engine, prompts=prompts)
    at_start = source.complete(prompts, 1)

    for parameter in policy.model.parameters():
        parameter.data.mul_(1.5)
    source.sync_weights()

    assert source.complete(prompts, 1) == at_start
    moved = EngineSource(engine, config).complete(prompts, 1)
    assert moved != at_start


@pytest.mark.parametrize("source", ["policy", "start"])
def test_how_it_decodes_is_as_the_run_asks(source, policy, model_folder, monkeypatch):
    config = config_of(model_folder, rollout={"source": source, "decoding": "plain"})
    asked: list[str] = []
    make = make_decoder

    def noted(*args: Any, way: DecodingMethod, **options: Any) -> Decoder:
        asked.append(way)
        return make(*args, way=way, **options)

    monkeypatch.setattr("trainer.rollout.builtin.make_decoder", noted)
    found = make_source(
        config, policy=policy, engine=make_engine(config, policy), prompts=[]
    )

    found.complete(prompts_of(policy, config, {}), 1)

    assert set(asked) == {"plain"}


def test_sft_trains_on_the_text_of_the_row(policy, model_folder):
    config = config_of(model_folder, rollout=SFT)
    prompts = prompts_of(policy, config, {"completion": "12*3"}, {"completion": "b"})
    engine = TransformersEngine(policy, max_batch_rows=8)
    source = make_source(config, policy=policy, engine=engine, prompts=prompts)

    ((first,), (second,)) = source.complete(prompts, 5)

    written = policy.tokenizer.encode("12*3", add_special_tokens=False)
    assert first.token_ids == (*written, policy.tokenizer.eos_token_id)
    assert first.logprobs == (0.0,) * 5
    assert (first.text, first.end_reason) == ("12*3", "stop")
    assert second.num_tokens == 2


def test_a_text_past_the_limit_is_cut_and_has_no_end(policy, model_folder):
    config = config_of(model_folder, rollout=SFT | {"max_new_tokens": 4})
    prompts = prompts_of(policy, config, {"completion": "123"}, {"completion": "12345"})

    ((fits,), (cut,)) = DatasetSource(policy, config, prompts).complete(prompts, 1)

    assert (fits.num_tokens, fits.end_reason) == (4, "stop")
    assert (cut.num_tokens, cut.end_reason, cut.text) == (4, "length", "1234")
    assert policy.tokenizer.eos_token_id not in cut.token_ids


@pytest.mark.parametrize("columns", [{}, {"completion": ""}, {"completion": 3}])
def test_rows_without_a_text_are_refused_before_the_run(policy, model_folder, columns):
    config = config_of(model_folder, rollout=SFT)
    prompts = prompts_of(policy, config, {"completion": "1"}, columns | {"n": 1})

    with pytest.raises(ValueError, match=r"Row 1 .*completion_column"):
        DatasetSource(policy, config, prompts)


def test_another_column_may_hold_the_text(policy, model_folder):
    config = config_of(
        model_folder, rollout=SFT, data={"completion_column": "solution"}
    )
    prompts = prompts_of(policy, config, {"solution": "7"})

    ((found,),) = DatasetSource(policy, config, prompts).complete(prompts, 1)

    assert found.text == "7"
