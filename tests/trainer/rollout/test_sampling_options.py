"""Min-p, a repetition penalty and texts that end a completion."""

import math
from dataclasses import replace

import pytest
import torch

from tests.trainer.rollout.test_rollout import ids_of, requests_of, sample
from trainer.config import LossConfig
from trainer.data import Prompt, Row
from trainer.model.packing import batch_of
from trainer.rewards.scoring import Score
from trainer.rollout import builtin
from trainer.rollout.decoder import draw_tokens
from trainer.rollout.engine import Sampled, as_completion, logprob_gap
from trainer.tokenizers import decode_text
from trainer.types import Group, Rollout


def completions_of(groups: list[tuple[Rollout, ...]]) -> list[Rollout]:
    return [completion for group in groups for completion in group]


def drawn(logits: list[float], **options: object) -> set[int]:
    """The tokens that 1,000 even draws give."""
    uniform = (torch.arange(1_000) + 0.5) / 1_000
    rows = torch.tensor(logits).expand(1_000, len(logits))
    chosen, _ = draw_tokens(rows, uniform, temperature=1.0, **options)
    return set(chosen.tolist())


@pytest.mark.parametrize(
    ("min_p", "tokens"),
    # of 0.4, 0.3, 0.2 and 0.1
    [(0.0, {0, 1, 2, 3}), (0.25, {0, 1, 2, 3}), (0.3, {0, 1, 2}), (0.76, {0})],
)
def test_min_p_keeps_tokens_at_least_a_share_as_likely_as_the_likeliest(min_p, tokens):
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]

    # 0.1 / 0.4 is 0.25 but for rounding
    assert drawn(logits, min_p=min_p - 1e-6 if min_p else 0.0) == tokens


def test_min_p_narrows_what_top_k_keeps():
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]

    assert drawn(logits, min_p=0.6, top_k=3) == {0, 1}
    assert drawn(logits, min_p=0.2, top_k=1) == {0}


def test_a_penalty_divides_positive_logits_and_multiplies_negative_ones():
    logits = torch.tensor([[3.0, -1.0, 0.5]] * 2)
    seen = torch.tensor([[True, True, False], [False, False, False]])
    # Penalised by 2: 1.5, -2.0 and 0.5.
    probs = torch.tensor([1.5, -2.0, 0.5]).softmax(0)

    below, _ = draw_tokens(
        logits,
        torch.full((2,), probs[0].item() - 1e-4),
        temperature=1.0,
        seen=seen,
        repetition_penalty=2.0,
    )
    above, logprobs = draw_tokens(
        logits,
        torch.tensor([(probs[0] + probs[1]).item() + 1e-4, 0.0]),
        temperature=1.0,
        seen=seen,
        repetition_penalty=2.0,
    )

    assert below.tolist() == [0, 0]
    assert above.tolist() == [2, 0]
    # They are the model's own.
    whole = logits[0].log_softmax(0)
    assert torch.allclose(logprobs, whole[[2, 0]])


def test_greedy_decoding_with_a_penalty_equals_transformers(policy):
    requests = requests_of(policy, 1)

    groups = sample(policy, requests, temperature=0, repetition_penalty=1.7)

    for request, (completion,) in zip(requests, groups, strict=True):
        ids = torch.tensor([request.token_ids])
        expected = policy.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=30,
            do_sample=False,
            repetition_penalty=1.7,
        )
        assert completion.token_ids == tuple(expected[0, ids.shape[1] :].tolist())
    assert ids_of(groups) != ids_of(sample(policy, requests, temperature=0))


@pytest.mark.parametrize(
    "options", [{"min_p": 0.2}, {"repetition_penalty": 1.5}, {"stop": (" ",)}]
)
def test_logprobs_equal_the_policys_with_any_option(policy, options):
    requests = requests_of(policy, 3)

    groups = sample(policy, requests, temperature=0.8, **options)

    assert logprob_gap(policy, requests, groups, temperature=0.8) < 1e-5


@pytest.mark.parametrize("options", [{"min_p": 0.1}, {"repetition_penalty": 1.3}])
def test_completions_follow_from_their_seeds_alone_with_any_option(policy, options):
    requests = requests_of(policy, 4)

    together = ids_of(sample(policy, requests, **options))

    assert together == ids_of(sample(policy, requests, max_batch_rows=3, **options))
    assert together != ids_of(sample(policy, requests))


def test_a_stop_text_ends_a_completion_with_the_token_that_completes_it(policy):
    requests = requests_of(policy, 4)
    whole = completions_of(sample(policy, requests))
    # A text that crosses tokens of the first completion.
    stop = whole[0].text[3:6]
    assert len(stop) == 3

    stopped = completions_of(sample(policy, requests, stop=(stop, "never written")))

    ends = []
    for short, long in zip(stopped, whole, strict=True):
        assert long.token_ids[: short.num_tokens] == short.token_ids
        assert long.logprobs[: short.num_tokens] == pytest.approx(
            short.logprobs, abs=1e-5
        )
        assert short.is_stopped_by_text == (stop in long.text)
        if short.is_stopped_by_text:
            assert short.end_reason == "stop"
            assert not short.has_end_token
            before = decode_text(policy.tokenizer, short.token_ids[:-1])
            assert stop in short.text
            assert stop not in before
        ends.append(short.is_stopped_by_text)
    assert ends[0]
    assert not all(ends)


def test_what_is_behind_a_stop_text_is_cut_off(policy):
    tokenizer = policy.tokenizer
    ids = tuple(tokenizer.encode("3+4=7 and more", add_special_tokens=False))
    sampled = Sampled(token_ids=(*ids, 1), logprobs=(-0.5,) * (len(ids) + 1))

    cut = as_completion(sampled, tokenizer, (1,), ("=7",))
    whole = as_completion(sampled, tokenizer, (1,), ("=8",))

    assert cut.text == "3+4=7"
    assert cut.token_ids == ids[: cut.num_tokens]
    assert len(cut.logprobs) == cut.num_tokens
    assert cut.is_stopped_by_text
    assert whole.token_ids == (*ids, 1)
    assert whole.has_end_token
    assert whole.text == decode_text(tokenizer, ids)


def test_the_loss_covers_the_last_token_of_a_stop_text(policy):
    request = requests_of(policy, 1)[0]
    ((whole,),) = sample(policy, [request], temperature=0)
    stop = whole.text[2:4]
    ((stopped,),) = sample(policy, [request], temperature=0, stop=(stop,))
    assert stopped.is_stopped_by_text

    covered = [
        _num_covered(request.token_ids, replace(stopped, is_stopped_by_text=by_text))
        for by_text in (True, False)
    ]

    assert covered == [stopped.num_tokens, stopped.num_tokens - 1]


def _num_covered(prompt_ids: tuple[int, ...], completion: Rollout) -> int:
    group = Group(
        prompt=Prompt(
            row=Row(index=0, prompt="?", answer=None, columns={}),
            text="?",
            token_ids=prompt_ids,
        ),
        completions=(completion,),
        scores=(Score(1.0, {}, {}),),
    )
    batch = batch_of([group], LossConfig(mask_end_token=True))
    (micro,) = batch.micro_batches(max_tokens=1_000, device=torch.device("cpu"))
    return int(micro.mask.sum())


def test_a_completion_has_no_token_that_was_not_sampled_behind_its_stop(
    policy, monkeypatch
):
    # As where a tokenizer hides the text among bytes that are no characters.
    monkeypatch.setattr(builtin, "decode_text", lambda _, ids: "x" * len(ids))
    requests = requests_of(policy, 2)

    completions = completions_of(sample(policy, requests, stop=("xxxxx",)))

    whole = completions_of(sample(policy, requests))
    for completion, long in zip(completions, whole, strict=True):
        assert completion.token_ids == long.token_ids[:5]
        assert completion.end_reason == "stop"
        assert completion.is_stopped_by_text == (not completion.has_end_token)


def test_a_token_that_only_the_penalty_made_likely_has_a_finite_logprob():
    logits = torch.tensor([[400.0, 12.0]])
    seen = torch.tensor([[True, False]])

    chosen, logprobs = draw_tokens(
        logits, torch.tensor([0.999]), temperature=0.5, seen=seen, repetition_penalty=10
    )

    # Penalised 80 and 24; the seen one is drawn by nearly all draws.
    assert chosen.tolist() == [0]
    chosen, logprobs = draw_tokens(
        logits,
        torch.tensor([0.999]),
        temperature=0.5,
        seen=seen,
        repetition_penalty=1_000,
    )
    assert chosen.tolist() == [1]
    assert logprobs.tolist() == [-776.0]
