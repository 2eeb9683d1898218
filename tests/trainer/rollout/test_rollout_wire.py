"""What goes to a rollout server and back, as bytes."""

from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from trainer.rollout.engine import Sampled, SamplingParams, SeededPrompt
from trainer.rollout.wire import (
    Question,
    pack_answer,
    pack_question,
    unpack_answer,
    unpack_question,
)

VOCABULARY = 37


def question_of(**changes: Any) -> Question:
    settings = {
        "prompts": [SeededPrompt(token_ids=(2, 3), seed=5)],
        "params": SamplingParams(max_new_tokens=5, temperature=0.7),
        "eos_ids": (1,),
        "version": 7,
    }
    return Question(**(settings | changes))


def test_a_question_arrives_as_it_was_sent():
    prompts = [
        SeededPrompt(token_ids=(2, 3, 4), seed=0),
        SeededPrompt(token_ids=(9,), seed=2**63 - 1),
    ]
    params = SamplingParams(max_new_tokens=5, temperature=0.7, stop=("\n\n", "</é>"))
    sent = question_of(prompts=prompts, eos_ids=(1, 6), params=params)

    got = unpack_question(pack_question(sent), vocabulary=VOCABULARY)

    assert got == sent


def test_limits_of_prompts_arrive_where_they_differ():
    prompts = [
        SeededPrompt(token_ids=(2, 3), seed=0, max_new_tokens=2),
        SeededPrompt(token_ids=(9,), seed=1, max_new_tokens=5),
    ]
    sent = question_of(prompts=prompts)

    got = unpack_question(pack_question(sent), vocabulary=VOCABULARY)

    assert got == sent
    assert "limits" not in load(pack_question(question_of()))
    samples = [Sampled(token_ids=(4,) * n, logprobs=(-1.0,) * n) for n in (3, 5)]
    with pytest.raises(ValueError, match="does not contain 2 completions"):
        unpack_answer(pack_answer(samples, version=7), got)


@pytest.mark.parametrize("limits", [[2], [2, 0]])
def test_limits_that_fit_no_prompts_are_refused(limits):
    prompts = [
        SeededPrompt(token_ids=(2, 3), seed=0, max_new_tokens=2),
        SeededPrompt(token_ids=(9,), seed=1),
    ]
    tensors = load(pack_question(question_of(prompts=prompts)))
    tensors["limits"] = torch.tensor(limits)

    with pytest.raises(ValueError, match="limits must"):
        unpack_question(save(tensors), vocabulary=VOCABULARY)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": [SeededPrompt(token_ids=(2, 99), seed=0)]}, "tokens must be"),
        ({"eos_ids": (99,)}, "eos_ids must .* below 37"),
        ({"prompts": []}, "lengths must"),
        ({"prompts": [SeededPrompt(token_ids=(), seed=0)]}, "lengths must"),
        (
            {"params": SamplingParams(max_new_tokens=0, temperature=1.0)},
            "max_new_tokens at least 1",
        ),
        (
            {"params": SamplingParams(max_new_tokens=1, temperature=float("nan"))},
            "temperature must be",
        ),
    ],
)
def test_a_request_beyond_the_model_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        unpack_question(pack_question(question_of(**changes)), vocabulary=VOCABULARY)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": torch.zeros(2)},
        {"tokens": torch.zeros(1, 2, dtype=torch.int32)},
        {"version": torch.tensor([7])},
        {"other": torch.zeros(1)},
    ],
)
def test_tensors_of_other_names_types_or_dimensions_are_refused(changes):
    body = save({**load(pack_question(question_of())), **changes})

    with pytest.raises(ValueError, match=f"got .*{next(iter(changes))}"):
        unpack_question(body, vocabulary=VOCABULARY)


def test_completions_of_other_weights_are_refused():
    sampled = [Sampled(token_ids=(4, 1), logprobs=(-0.5, -1.0))]
    question = question_of()

    assert unpack_answer(pack_answer(sampled, version=7), question) == sampled
    with pytest.raises(ValueError, match=r" 6, .* 7"):
        unpack_answer(pack_answer(sampled, version=6), question)


def test_an_answer_of_other_size_is_refused():
    sampled = [Sampled(token_ids=(4,) * 6, logprobs=(-0.5,) * 6)]

    for wrong in (sampled, [], sampled * 2):
        with pytest.raises(ValueError, match="1 completions"):
            unpack_answer(pack_answer(wrong, version=7), question_of())
