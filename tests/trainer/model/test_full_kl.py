"""The divergence over the vocabulary: exact, in chunks, with an exact gradient."""

import pytest
import torch

from tests.trainer.losses import policy_loss
from tests.trainer.samples import cut, make_batch
from tests.trainer.tiny import write_model
from trainer.config import LossConfig, ModelConfig
from trainer.model import logprobs as module
from trainer.model.logprobs import LogitMap, token_logprobs, token_logprobs_and_kl
from trainer.model.policy import load_policy

TEMPERATURE = 0.7


@pytest.fixture(params=["kept", "computed again"])
def _in_chunks(request, monkeypatch) -> None:
    monkeypatch.setattr(module, "_MAX_LOGITS", 33)  # 3 tokens of 11
    monkeypatch.setattr(module, "_MAX_KEPT", 10**6 if request.param == "kept" else 0)


def linear(seed: int, *, bias: bool = True, vocabulary: int = 11) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(5, vocabulary, bias=bias).double()


def naive(
    hidden: torch.Tensor,
    head: torch.nn.Linear,
    targets: torch.Tensor,
    *,
    reference_hidden: torch.Tensor,
    reference_head: torch.nn.Linear,
    temperature: float,
    logit_map: LogitMap,
    reference_logit_map: LogitMap,
) -> tuple[torch.Tensor, ...]:
    policy = torch.distributions.Categorical(
        logits=logit_map(head(hidden)) / temperature
    )
    reference = torch.distributions.Categorical(
        logits=reference_logit_map(reference_head(reference_hidden).detach())
        / temperature
    )
    return (
        policy.log_prob(targets),
        policy.entropy(),
        torch.distributions.kl_divergence(policy, reference),
    )


@pytest.mark.usefixtures("_in_chunks")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("uses", [(0, 0, 1), (1, 0, 1), (1, 1, 1), (1, 1, 0)])
@pytest.mark.parametrize("cap", [None, 0.9])
def test_values_and_gradients_equal_the_naive_ones(*, bias, uses, cap) -> None:
    torch.manual_seed(3)
    targets = torch.randint(0, 11, (7,))
    start, reference_hidden = torch.randn(2, 7, 5).double()
    weights = torch.randn(3, 7).double()
    found = []
    for compute in (naive, token_logprobs_and_kl):
        head, hidden = linear(1, bias=bias), start.clone().requires_grad_()
        values = compute(
            hidden,
            head,
            targets,
            reference_hidden=reference_hidden,
            reference_head=linear(2),
            temperature=TEMPERATURE,
            logit_map=LogitMap(1.3, cap),
            reference_logit_map=LogitMap(0.6, cap and 2 * cap),
        )
        loss = sum(
            (use * value * weight).sum()
            for use, value, weight in zip(uses, values, weights, strict=True)
            if use
        )
        loss.backward()
        gradients = [hidden.grad, *(p.grad for p in head.parameters())]
        found.append([*values, *gradients])

    for mine, expected in zip(found[1], found[0], strict=True):
        assert torch.allclose(mine, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("_in_chunks")
def test_the_gradient_is_that_of_small_differences() -> None:
    torch.manual_seed(4)
    targets = torch.randint(0, 11, (4,))
    reference_hidden = torch.randn(4, 5).double()
    head = linear(1)

    def compute(
        hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        reference_head = linear(2)
        reference = module._Reference(
            reference_hidden, reference_head.weight, reference_head.bias, LogitMap(0.9)
        )
        found: tuple[torch.Tensor, ...] = module._TokenLogProbs.apply(
            hidden, weight, bias, targets, LogitMap(1.3, 0.8), reference
        )
        return found

    hidden = torch.randn(4, 5).double().requires_grad_()

    assert torch.autograd.gradcheck(
        compute, (hidden, head.weight, head.bias), fast_mode=False
    )


@pytest.mark.usefixtures("_in_chunks")
def test_logprobs_and_entropies_are_those_without_a_reference() -> None:
    torch.manual_seed(5)
    targets = torch.randint(0, 11, (7,))
    hidden, reference_hidden = torch.randn(2, 7, 5).double()
    head = linear(1)

    logprob, entropy, _ = token_logprobs_and_kl(
        hidden,
        head,
        targets,
        reference_hidden=reference_hidden,
        reference_head=linear(2),
        temperature=TEMPERATURE,
    )

    alone = token_logprobs(hidden, head, targets, temperature=TEMPERATURE)
    assert torch.equal(logprob, alone[0])
    assert torch.equal(entropy, alone[1])


def test_it_is_what_k1_estimates():
    torch.manual_seed(6)
    hidden = torch.randn(1, 5).double()
    policy, reference = linear(1), linear(2)
    every = torch.arange(11)

    def logprobs(head: torch.nn.Linear) -> torch.Tensor:
        return token_logprobs(
            hidden.expand(11, 5), head, every, temperature=TEMPERATURE
        )[0]

    mine, other = logprobs(policy), logprobs(reference)
    expected = (mine.exp() * (mine - other)).sum()

    _, _, kl = token_logprobs_and_kl(
        hidden,
        policy,
        every[:1],
        reference_hidden=hidden,
        reference_head=reference,
        temperature=TEMPERATURE,
    )
    assert kl.item() == pytest.approx(expected.item())


def test_a_model_has_no_distance_to_itself_and_no_pull(policy):
    (micro,) = cut(make_batch(5), policy, max_tokens=10_000)

    _, _, kl = policy.logprobs_and_kl(micro, policy, temperature=TEMPERATURE)
    kl.sum().backward()

    assert not kl.any()
    gradients = [p.grad for p in policy.model.parameters() if p.grad is not None]
    assert max(gradient.abs().max().item() for gradient in gradients) < 1e-6


def test_tokens_of_a_micro_batch_get_the_divergence_of_whole_logits(policy, tmp_path):
    other = load_policy(
        ModelConfig(path=str(write_model(tmp_path / "other", seed=7)), device="cpu")
    )
    batch = make_batch(6)
    for micro in cut(batch, policy, max_tokens=60):
        logprobs, entropy, kl = policy.logprobs_and_kl(
            micro, other, temperature=TEMPERATURE
        )

        both = policy.logprobs(micro, temperature=TEMPERATURE)
        assert torch.allclose(logprobs, both[0], atol=1e-6)
        assert torch.allclose(entropy, both[1], atol=1e-6)
        for row, member in enumerate(micro.members):
            sample = batch.samples[member]
            ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
            first, size = len(sample.prompt_ids), len(sample.completion_ids)
            mine, theirs = (
                model(input_ids=ids).logits[0, first - 1 : first - 1 + size]
                for model in (policy.model, other.model)
            )
            expected = torch.distributions.kl_divergence(
                torch.distributions.Categorical(logits=mine / TEMPERATURE),
                torch.distributions.Categorical(logits=theirs / TEMPERATURE),
            )
            assert expected.max() > 0.1
            assert torch.allclose(kl[row, :size], expected, atol=1e-5)
            assert not kl[row, size:].any()


def test_an_impossible_token_leaves_the_divergence_finite():
    head, reference = (torch.nn.Linear(1, 3, bias=False) for _ in range(2))
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [0.0], [-1e30]]))
        reference.weight.copy_(torch.tensor([[0.0], [1.0], [-1e30]]))
    hidden = torch.ones(1, 1, requires_grad=True)

    _, _, kl = token_logprobs_and_kl(
        hidden,
        head,
        torch.tensor([0]),
        reference_hidden=torch.ones(1, 1),
        reference_head=reference,
        temperature=1.0,
    )
    kl.sum().backward()

    # q = 1/(1+e), e/(1+e): D = -log 2 - (log q0 + log q1)/2
    assert kl.item() == pytest.approx(0.1201145, abs=1e-6)
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_the_loss_takes_the_full_kl_as_it_is():
    zeros, mask = torch.zeros(2, 2), torch.tensor([[1, 1], [1, 0]])
    kl = torch.tensor([[0.5, 2.0], [0.1, 9.0]], requires_grad=True)

    loss, metrics = policy_loss(
        zeros,
        zeros,
        torch.zeros(2),
        mask,
        LossConfig(kl_estimator="full", kl_coef=0.3),
        kl_full=kl,
    )
    loss.backward()

    assert loss.item() == pytest.approx(0.3 * 2.6 / 3)
    assert kl.grad is not None
    assert torch.allclose(kl.grad, torch.tensor([[0.1, 0.1], [0.1, 0.0]]))
    assert metrics["kl/mean"] == pytest.approx(2.6 / 3)
    assert metrics["kl/max"] == pytest.approx(2.0)


def test_a_clamp_bounds_the_full_kl():
    loss, _ = policy_loss(
        torch.zeros(1, 2),
        torch.zeros(1, 2),
        torch.zeros(1),
        torch.ones(1, 2),
        LossConfig(kl_estimator="full", kl_coef=1.0, kl_clamp=1.0),
        kl_full=torch.tensor([[0.5, 7.0]]),
    )

    assert loss.item() == pytest.approx(0.75)
