"""Drawing from the likeliest tokens only."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rollout.test_rollout import ids_of, requests_of, sample
from trainer.rollout.decoder import draw_tokens, keep_likeliest
from trainer.seeding import derive, uniforms

PROBS = [0.05, 0.4, 0.15, 0.3, 0.1]


def kept(probs: list[float], *, top_p: float = 1.0, top_k: int = 0) -> list[float]:
    rows = torch.tensor([probs], dtype=torch.float64)
    return keep_likeliest(rows, top_p=top_p, top_k=top_k)[0].tolist()


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.01, [0, 0.4, 0, 0, 0]),  # never fewer than one token
        (0.39, [0, 0.4, 0, 0, 0]),
        (0.41, [0, 0.4, 0, 0.3, 0]),  # the token that reaches the share is kept
        (0.8, [0, 0.4, 0.15, 0.3, 0]),
        (0.96, PROBS),
    ],
)
def test_top_p_keeps_the_fewest_tokens_that_hold_the_share(top_p, expected):
    assert kept(PROBS, top_p=top_p) == expected


@pytest.mark.parametrize(
    ("top_k", "expected"),
    [
        (1, [0, 0.4, 0, 0, 0]),
        (3, [0, 0.4, 0.15, 0.3, 0]),
        (5, PROBS),
        (900, PROBS),
        (0, PROBS),
    ],
)
def test_top_k_keeps_k_tokens(top_k, expected):
    assert kept(PROBS, top_k=top_k) == expected


def test_top_p_counts_the_share_of_what_top_k_keeps():
    # of 0.4 + 0.3 + 0.15 = 0.85 the first holds 0.47 and the first two 0.82
    assert kept(PROBS, top_k=3, top_p=0.8) == [0, 0.4, 0, 0.3, 0]
    assert kept(PROBS, top_p=0.8) == [0, 0.4, 0.15, 0.3, 0]


def test_ties_keep_the_lower_token_ids():
    assert kept([0.1, 0.3, 0.3, 0.3], top_k=2) == [0, 0.3, 0.3, 0]
    assert kept([0.25] * 4, top_p=0.7) == [0.25, 0.25, 0.25, 0]


def slowly_kept(probs: list[float], *, top_p: float, top_k: int) -> list[float]:
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    order = order[: top_k or len(order)]
    total = sum(probs[token] for token in order)
    chosen: set[int] = set()
    for token in order:
        if top_p < 1 and sum(probs[t] for t in chosen) >= top_p * total:
            break
        chosen.add(token)
    return [p if token in chosen else 0 for token, p in enumerate(probs)]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any),
    st.integers(1, 100).map(lambda n: n / 100 + 0.0037),  # off what sums can meet
    st.integers(0, 45),
)
def test_the_likeliest_equal_a_slow_version(counts, top_p, top_k):
    probs = [count / sum(counts) for count in counts]

    found = kept(probs, top_p=min(top_p, 1.0), top_k=top_k)

    expected = slowly_kept(probs, top_p=min(top_p, 1.0), top_k=top_k)
    assert found == expected


def test_a_rows_tokens_do_not_depend_on_the_rows_next_to_it():
    torch.manual_seed(0)
    # bfloat16 makes many tokens equally likely
    probs = torch.randn(12, 500).bfloat16().float().softmax(dim=1)

    together = keep_likeliest(probs, top_p=0.9, top_k=0)

    alone = [keep_likeliest(row[None], top_p=0.9, top_k=0) for row in probs]
    assert torch.equal(together, torch.cat(alone))


def test_kept_tokens_are_drawn_in_proportion_and_others_never():
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0])
    seeds = [derive(0, index) for index in range(4000)]
    drawn = uniforms(seeds, first=5, count=1)[:, 0]

    chosen, logprobs = draw_tokens(
        logits.expand(4000, 5), drawn, temperature=2.0, top_k=4, top_p=0.8
    )

    probs = (logits / 2).softmax(0)
    expected = {2: probs[2], 4: probs[4], 0: probs[0]}  # 85% of the likeliest four
    counts = Counter(chosen.tolist())
    assert set(counts) == set(expected)
    for token, prob in expected.items():
        share = (prob / sum(expected.values())).item()
        assert abs(counts[token] - 4000 * share) <= 4 * (4000 * share) ** 0.5
    # of the whole distribution, not of what was drawn from
    assert torch.allclose(logprobs, probs.log()[chosen])


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_the_ends_of_the_unit_interval_draw_kept_tokens(uniform):
    torch.manual_seed(1)
    logits = torch.randn(2000, 40) - 3 * torch.arange(40)
    probs = logits.softmax(dim=1)

    chosen, _ = draw_tokens(
        logits, torch.full((2000,), uniform), temperature=1.0, top_k=2
    )

    likeliest = keep_likeliest(probs, top_p=1.0, top_k=2)
    assert (likeliest.gather(1, chosen[:, None]) > 0).all()


def test_restricted_completions_follow_from_their_seeds_alone(policy):
    requests = requests_of(policy, 4)
    options = {"top_p": 0.8, "top_k": 6}

    together = ids_of(sample(policy, requests, **options))

    assert together == ids_of(sample(policy, requests, max_batch_rows=3, **options))
    assert together == [
        ids_of(sample(policy, [each], **options))[0] for each in requests
    ]
    assert together != ids_of(sample(policy, requests))


def test_reported_logprobs_are_those_of_the_whole_vocabulary(policy):
    (request,) = requests_of(policy, 1)[:1]

    ((completion,),) = sample(policy, [request], temperature=0.9, top_k=3)

    ids = torch.tensor([[*request.token_ids, *completion.token_ids]])
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, len(request.token_ids) - 1 :]
    whole = (logits[:-1] / 0.9).log_softmax(dim=-1)
    expected = whole.gather(1, ids[0, -completion.num_tokens :, None]).squeeze(1)
    assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=2e-5)
    assert (whole.exp().topk(3).values.sum(dim=1) < 0.99).any()
    ranks = (whole > expected[:, None]).sum(dim=1)
    assert int(ranks.max()) < 3


def test_a_single_likeliest_token_is_greedy_decoding(policy):
    requests = requests_of(policy, 2)

    found = ids_of(sample(policy, requests, top_k=1))

    assert found == ids_of(sample(policy, requests, temperature=0))
