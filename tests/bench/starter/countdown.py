"""The starter's task: Countdown with three numbers, + and -, and texts that search.

A problem is `3 5 7 > 1`: reach 1 with 3, 5 and 7, each used once. A text that solves
it tries plans, marks each a hit (.) or a miss (!), then answers:

    <think>3+5=8,8+7=15!3+5=8,8-7=1.</think><answer>3+5-7</answer>

A tiny language model learns it from examples, with Muon: momentum whose update is
orthogonalised (Keller Jordan, 2024). torch's own orthogonalises in bfloat16, which a
CPU without AVX-512 or AMX computes ten times more slowly; this one stays in float32. In
the tokenizer, whole numbers and the four tags are single tokens.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

MAX_NUMBER = 15
MAX_TARGET = 30
HIT, MISS = ".", "!"


@dataclass(frozen=True, order=True)
class Problem:
    """Three different numbers, ascending, and the value to reach."""

    numbers: tuple[int, int, int]
    target: int


@dataclass(frozen=True)
class Plan:
    """`first ± second ± third`, computed from left to right, never below 0.

    >>> Plan((3, 5, 7), (1, -1)).value
    1
    """

    numbers: tuple[int, int, int]
    signs: tuple[int, int]

    @property
    def partial(self) -> int:
        return self.numbers[0] + self.signs[0] * self.numbers[1]

    @property
    def value(self) -> int:
        return self.partial + self.signs[1] * self.numbers[2]

    @property
    def expression(self) -> str:
        first, second, third = self.numbers
        return f"{first}{_sign(self.signs[0])}{second}{_sign(self.signs[1])}{third}"

    def worked(self, mark: str) -> str:
        """The plan computed step by step, such as `3+5=8,8-7=1.`"""
        first, second, third = self.numbers
        return (
            f"{first}{_sign(self.signs[0])}{second}={self.partial},"
            f"{self.partial}{_sign(self.signs[1])}{third}={self.value}{mark}"
        )


def _sign(sign: int) -> str:
    return "+" if sign > 0 else "-"


def plans_for(numbers: tuple[int, int, int]) -> list[Plan]:
    """Every plan over the numbers whose partial and final values are not negative."""
    found = [
        Plan((first, second, third), (sign, other_sign))
        for first, second, third in itertools.permutations(numbers)
        for sign in (1, -1)
        for other_sign in (1, -1)
    ]
    return [plan for plan in found if plan.partial >= 0 and plan.value >= 0]


def all_problems() -> list[Problem]:
    """Every solvable problem, in order."""
    return [
        Problem(numbers, target)
        for numbers in itertools.combinations(range(1, MAX_NUMBER + 1), 3)
        for target in sorted({plan.value for plan in plans_for(numbers)})
        if 1 <= target <= MAX_TARGET
    ]


def prompt_for(problem: Problem, chance: random.Random) -> str:
    """The problem as text, its numbers in a random order."""
    numbers = chance.sample(problem.numbers, 3)
    return f"{' '.join(map(str, numbers))} > {problem.target}"


def searching_text(
    problem: Problem,
    chance: random.Random,
    *,
    hit_rate: float,
    give_up_rate: float,
    max_tries: int,
) -> str:
    """A completion that tries plans until one hits or it gives up.

    A try is right with probability `hit_rate`; after a miss the text gives up with
    probability `give_up_rate` and answers with that miss. So the format is always
    right, the arithmetic too, and the answer seldom: what is left to learn from
    rewards is to go on trying, and to guess better.
    """
    plans = plans_for(problem.numbers)
    hits = [plan for plan in plans if plan.value == problem.target]
    misses = [plan for plan in plans if plan.value != problem.target]
    tries = []
    for number in range(1, max_tries + 1):
        is_hit = chance.random() < hit_rate or not misses
        plan = chance.choice(hits if is_hit else misses)
        tries.append(plan.worked(HIT if is_hit else MISS))
        if is_hit or number == max_tries or chance.random() < give_up_rate:
            break
    return f"<think>{''.join(tries)}</think><answer>{plan.expression}</answer>"


def solving_text(problem: Problem, chance: random.Random, *, max_misses: int) -> str:
    """A completion that misses at most so often, hits, and answers with the hit."""
    return hinted_text(problem, chance, max_misses=max_misses)[1]


def hinted_text(
    problem: Problem, chance: random.Random, *, max_misses: int
) -> tuple[str, str]:
    """A solution, and a completion that misses at most so often and answers with it."""
    plans = plans_for(problem.numbers)
    hit = chance.choice([plan for plan in plans if plan.value == problem.target])
    misses = [plan for plan in plans if plan.value != problem.target]
    num_misses = chance.randint(0, min(max_misses, len(misses)))
    tries = [plan.worked(MISS) for plan in chance.sample(misses, num_misses)]
    text = "".join([*tries, hit.worked(HIT)])
    return (
        hit.expression,
        f"<think>{text}</think><answer>{hit.expression}</answer>",
    )


PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MAX_TOKEN_NUMBER = 99
_SIGNS = "+-*/=()>,.!? \n"
_PIECES = r"</?(?:think|answer)>|<(?:pad|unk|end)>|\d+|[\s\S]"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer that gives back every text in its vocabulary exactly."""
    words = [
        PAD,
        UNKNOWN,
        END,
        *TAGS,
        *_SIGNS,
        *(str(number) for number in range(MAX_TOKEN_NUMBER + 1)),
    ]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    # Without one, the pieces are joined with spaces between them.
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


# Of the quintic iteration; they push singular values towards 1 fast, not exactly.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_MOMENTUM = 0.95


class Muon(torch.optim.Optimizer):
    """For matrices only; each step moves by `lr` in every direction of the update."""

    def __init__(self, matrices: Iterable[torch.nn.Parameter], *, lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure here
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                momentum = state.setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
                update = matrix.grad.lerp(momentum, _MOMENTUM)  # Nesterov
                rows, columns = matrix.shape
                scale = max(1.0, rows / columns) ** 0.5
                matrix.add_(orthogonalise(update), alpha=-group["lr"] * scale)


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """Roughly U Vᵀ of the singular value decomposition U S Vᵀ; shape kept.

    Newton-Schulz: X ← aX + (bA + cA²)X with A = XXᵀ, five times; singular values end
    between about 0.7 and 1.2.
    """
    x: torch.Tensor = matrix / (matrix.norm() + 1e-7)
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.T
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.T if is_tall else x


NOT_TRAINED = -100  # torch's mark for a target that does not count


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How the texts search: a try is right with `hit_rate`, a miss is the last try
    with `give_up_rate`."""

    hit_rate: float
    give_up_rate: float


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """What the warm-up teaches, and for how long.

    First the skill, in texts with many tries and as many hits as chance would give:
    to compute, and to tell a hit from a miss. Then the habit that rewards will undo:
    to try the wrong plan and give up. A model that cannot tell a hit from a miss
    learns to claim hits instead (reward 0.47 rather than 0.7 after 200 steps).
    """

    num_steps: int = 650
    batch_size: int = 32
    matrix_learning_rate: float = 0.02
    learning_rate: float = 3e-3
    skill: Manner = Manner(hit_rate=0.3, give_up_rate=0.1)
    habit: Manner = Manner(hit_rate=0.1, give_up_rate=0.7)
    skill_share: float = 0.7  # of the steps
    max_tries: int = 4
    # Whether a plan hits is one token in twelve and decides the answer.
    mark_weight: float = 5.0
    # Of the texts, those whose prompt begins with a solution, which they find.
    hint_share: float = 0.0

    def manner(self, step: int) -> Manner:
        """How the texts of a step search; steps are counted from 1."""
        is_early = step <= self.skill_share * self.num_steps
        return self.skill if is_early else self.habit


Report = Callable[[int, float], None]  # steps done, loss
# Token ids of a text, and which of them the model is taught to write.
Example = tuple[list[int], list[bool]]


def build_model(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A Llama of 3 layers, width 128, 0.6 million parameters, freshly drawn.

    Not a Qwen2, although equal in size: AutoTokenizer forces that model type's own
    tokenizer class, whose rules lose this tokenizer's spaces.
    """
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=384,
            tie_word_embeddings=True,
            max_position_embeddings=512,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def teach(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    *,
    teaching: Teaching,
    seed: int,
    report: Report,
) -> list[float]:
    """Teach texts that search; returns the loss of each step."""

    def make_batch(step: int, chance: random.Random) -> list[Example]:
        return [
            _example(tokenizer, problem, teaching, step, chance)
            for problem in chance.choices(problems, k=teaching.batch_size)
        ]

    return teach_texts(
        model, tokenizer, make_batch, teaching=teaching, seed=seed, report=report
    )


def teach_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    make_batch: Callable[[int, random.Random], list[Example]],
    *,
    teaching: Teaching,
    seed: int,
    report: Report,
) -> list[float]:
    """Supervised training on a batch a step; returns the loss of each step.

    The loss is the weighted mean cross-entropy (nats) of completion tokens; the
    learning rates fall linearly to 0 after a short rise. With AdamW alone the loss is
    0.48 after 200 steps, with Muon 0.23.
    """
    weights = torch.ones(len(tokenizer))
    weights[tokenizer.convert_tokens_to_ids([HIT, MISS])] = teaching.mark_weight
    optimizers = _optimizers(model, teaching)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: _rate(step, teaching.num_steps)
        )
        for optimizer in optimizers
    ]
    losses = []
    model.train()
    chance = random.Random(seed)
    for step in range(1, teaching.num_steps + 1):
        batch = make_batch(step, chance)
        ids, targets = _padded(batch, pad_id=tokenizer.pad_token_id)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(
            logits.flatten(0, 1),
            targets[:, 1:].flatten(),
            weight=weights,
            ignore_index=NOT_TRAINED,
        )
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        losses.append(loss.item())
        report(step, losses[-1])
    model.eval()
    return losses


def _optimizers(
    model: PreTrainedModel, teaching: Teaching
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside; AdamW for the embedding and the norms."""
    embedding = model.get_input_embeddings().weight
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for parameter in model.parameters():
        is_inside = parameter.ndim == 2 and parameter is not embedding
        (matrices if is_inside else others).append(parameter)
    return [
        Muon(matrices, lr=teaching.matrix_learning_rate),
        torch.optim.AdamW(others, lr=teaching.learning_rate, betas=(0.9, 0.98)),
    ]


def _rate(step: int, num_steps: int) -> float:
    rise = max(1, min(50, num_steps // 10))
    return min((step + 1) / rise, (num_steps - step) / num_steps)


def _example(
    tokenizer: PreTrainedTokenizerBase,
    problem: Problem,
    teaching: Teaching,
    step: int,
    chance: random.Random,
) -> Example:
    """Prompt, completion and end; the prompt is not taught."""
    prompt, manner = prompt_for(problem, chance), teaching.manner(step)
    if teaching.hint_share and chance.random() < teaching.hint_share:
        hint, text = hinted_text(problem, chance, max_misses=teaching.max_tries - 1)
        prompt = f"{hint}\n{prompt}"
    else:
        text = searching_text(
            problem,
            chance,
            hit_rate=manner.hit_rate,
            give_up_rate=manner.give_up_rate,
            max_tries=teaching.max_tries,
        )
    assert isinstance(tokenizer.eos_token_id, int)
    prompt_ids = tokenizer.encode(prompt)
    completion = [*tokenizer.encode(text), tokenizer.eos_token_id]
    taught = [False] * len(prompt_ids) + [True] * len(completion)
    return prompt_ids + completion, taught


def _padded(
    examples: Sequence[Example], *, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and targets [B, T], padded on the right."""
    length = max(len(ids) for ids, _ in examples)
    ids = torch.full((len(examples), length), pad_id)
    targets = torch.full((len(examples), length), NOT_TRAINED)
    for row, (example, taught) in enumerate(examples):
        own = torch.tensor(example)
        ids[row, : len(example)] = own
        targets[row, : len(example)] = own.where(torch.tensor(taught), NOT_TRAINED)
    return ids, targets
