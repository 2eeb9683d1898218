"""Measures what Cohort makes of each architecture, on tiny random models.

Prints a line for each; with --write it also writes the tables of
dashboard/help/architectures.md, which test_architectures.py holds the code to.
"""

import argparse
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from tests.trainer.tiny import (
    ROOT,
    config_tree,
    write_config,
    write_rows,
    write_tokenizer,
)
from tests.trainer.tiny_architectures import ARCHITECTURES, LONGEST, Architecture
from tests.trainer.varlen import reference as varlen_reference
from trainer.config import read_config
from trainer.model import attention, kernels
from trainer.model.kernels import use_fused_kernels
from trainer.model.packing import Batch, TrainingSample, set_advantages
from trainer.model.policy import Policy
from trainer.output.checkpoint import restore_policy
from trainer.output.log import UnwrittenLog
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import Request, SamplingParams
from trainer.rollout.prefixes import PrefixStore
from trainer.run.setup import prepare
from trainer.run.state import Run, RunPaths
from trainer.types import Rollout

PAGE = ROOT / "dashboard" / "help" / "architectures.md"
MAX_GAP = 1e-5  # nats, and of a gradient relative to its size
NEW_TOKENS = 8
MAX_ROUNDINGS = 2.5  # of bfloat16, times what it makes of transformers by itself
SPREAD = 1.5  # standard deviation of the logits
LENGTHS = ((3, 5), (3, 1), (9, 2), (26, 9), (26, 1), (19, 14))


class Failure(Exception):
    """An error that the product does not explain."""


@dataclass(kw_only=True)
class Outcome:
    """What a run gets of an architecture, and how far off it is."""

    name: str
    form: str = ""  # of updates; empty: refused
    sampling: str = ""  # "own", "transformers", "none", or empty: vLLM's server
    reason: str = ""  # of the refusal
    notes: list[str] = field(default_factory=list)  # of what is refused besides
    gaps: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def kind(self) -> tuple[str, str]:
        return self.form, self.sampling

    def __str__(self) -> str:
        gaps = " ".join(f"{name}={gap:.1e}" for name, gap in self.gaps.items())
        got = f"{self.form or 'REFUSED'}/{self.sampling or 'vLLM server'}"
        parts = [f"{self.name:30} {got:22} {self.seconds:4.1f}s {gaps}"]
        parts += [f"    because: {self.reason}"] if self.reason else []
        parts += [f"    note: {each}" for each in self.notes]
        return "\n".join([*parts, *(f"    FAIL {each}" for each in self.failures)])


# --- models and texts


def write_architecture(architecture: Architecture, folder: Path) -> None:
    """Save a model with no weight at a value that would hide what it does."""
    write_tokenizer(folder)
    config = architecture.config()
    torch.manual_seed(0)
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except ValueError:  # only loaded with pictures
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    model.eval()
    stir(model)
    model.save_pretrained(folder)


@torch.no_grad()
def stir(model: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        is_buffer = not isinstance(weight, torch.nn.Parameter)
        if not weight.is_floating_point() or (is_buffer and "bias" not in name):
            continue
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim < 2 or is_buffer:
            weight.add_(0.2 * noise)
        elif weight.numel() > 1 and not name.endswith("A_log"):
            size = weight.std()
            weight.mul_(0.15 / size) if size > 0 else weight.copy_(0.15 * noise)
    head = model.get_output_embeddings()
    if head is not None:
        ids = torch.arange(2, 34)[None]
        # of those before a bound: a second pass would have a bound of its own
        size = model(input_ids=ids, use_cache=False).logits.float().std()
        head.weight.mul_(SPREAD / size)


def texts() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompts, of which each has two completions."""
    generator = torch.Generator().manual_seed(2)
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    prompts: dict[int, tuple[int, ...]] = {}

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(2, 36, (count,), generator=generator).tolist())

    for prompt, completion in LENGTHS:
        prompts.setdefault(prompt, draw(prompt))
        found.append((prompts[prompt], draw(completion)))
    return found


TEXTS = texts()
PROMPTS = tuple(dict.fromkeys(prompt for prompt, _ in TEXTS))
SLOPES = torch.randn(
    sum(len(completion) for _, completion in TEXTS),
    generator=torch.Generator().manual_seed(3),
).split([len(completion) for _, completion in TEXTS])


# --- transformers by itself: eager, a text at a time, without a cache


class Plain:
    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        *,
        attention: str = "eager",
        longest: int = 0,
        device: str = "cpu",
    ) -> None:
        """
        Args:
            longest: tokens that each text is filled up to.
        """
        settings: dict[str, Any] = {"attn_implementation": attention, "dtype": dtype}
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, **settings)
        except ValueError:
            model = AutoModelForImageTextToText.from_pretrained(folder, **settings)
        self.model = model.eval().to(device)
        for layer in model.modules():
            if hasattr(layer, "time_step_limit"):
                # transformers' own pass bounds a step of Zamba2 and Nemotron-H from
                # below, but neither its sampling nor vLLM do.
                layer.time_step_limit = (0.0, float("inf"))
        self._filler = [2] * longest

    def logprobs(
        self, prompt: Sequence[int], completion: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a completion's tokens, and of the likeliest tokens in their places."""
        ids = [*prompt, *completion]
        inputs = torch.tensor([ids + self._filler[len(ids) :]]).to(self.model.device)
        logits = self.model(input_ids=inputs, use_cache=False).logits[0].float().cpu()
        logprobs = torch.log_softmax(logits[len(prompt) - 1 : len(ids) - 1], dim=-1)
        chosen = torch.tensor(completion)[:, None]
        return logprobs.gather(1, chosen).squeeze(1), logprobs.amax(dim=1)

    def values(self) -> list[torch.Tensor]:
        with torch.no_grad():
            return [self.logprobs(*text)[0] for text in TEXTS]

    def gradients(self) -> dict[str, torch.Tensor]:
        for text, slopes in zip(TEXTS, SLOPES, strict=True):
            (self.logprobs(*text)[0] * slopes).sum().backward()
        return taken_gradients(self.model)


def plain_of(
    architecture: Architecture,
    folder: Path,
    dtype: torch.dtype = torch.float32,
    *,
    device: str = "cpu",
) -> Plain:
    longest = LONGEST if architecture.is_rotated_by_length else 0
    settings: dict[str, Any] = {"longest": longest, "device": device}
    return Plain(folder, dtype, attention=architecture.attention, **settings)


def taken_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {
        name: weight.grad.cpu()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return found


# --- the product, as a run uses it


def run_config(folder: Path, **model: Any) -> Path:
    rows = folder / "rows.jsonl"
    if not rows.exists():
        write_rows(rows, count=8)
    tree = config_tree(
        folder,
        rows,
        model={"device": "cpu", "dtype": "float32", **model},
        data={"max_prompt_tokens": LONGEST - NEW_TOKENS},
        rollout={"max_new_tokens": NEW_TOKENS, "max_batch_rows": 4},
    )
    return write_config(folder, tree)


def load(folder: Path, **model: Any) -> Policy:
    """The policy of a run."""
    config = read_config(run_config(folder, **model))
    policy = restore_policy(config.model, None)
    policy.fix_longest(config.longest_sequence)
    return policy


def start(folder: Path) -> Run:
    """A run before its first step."""
    config = run_config(folder)
    paths = RunPaths(
        config=config,
        out=folder,
        checkpoints=folder / "checkpoints",
        resume_from=None,
        attempt=1,
    )
    run, _ = prepare(read_config(config), paths, UnwrittenLog())
    return run


def refusal(error: Exception) -> str:
    """What the product says; empty for any other error."""
    where = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    is_own = type(error) is ValueError and (ROOT / "trainer") in where.parents
    return str(error) if is_own else ""


def explained(work: Callable[..., Any], *inputs: Any) -> tuple[Any, str]:
    """What the work returns, or None and why the product refuses it.

    Raises:
        Failure: another error.
    """
    try:
        return work(*inputs), ""
    except Exception as error:
        if reason := refusal(error):
            return None, reason
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        raise Failure(f"{type(error).__name__}: {error} ({place})") from error


def batch() -> Batch:
    return Batch(
        tuple(
            TrainingSample(
                prompt_ids=prompt,
                completion_ids=completion,
                sampling_logprobs=(0.0,) * len(completion),
            )
            for prompt, completion in TEXTS
        )
    )


Expected = tuple[Sequence[torch.Tensor], dict[str, torch.Tensor]]


def update(policy: Policy, *, backward: bool = True) -> Expected:
    """Log-probs of the texts' completions, and gradients of their weighted sum."""
    found, _ = explained(partial(_update, policy, backward=backward))
    if found is None:
        raise Failure("an update was refused")
    return found


def _update(policy: Policy, *, backward: bool) -> Expected:
    whole = batch()
    values: list[torch.Tensor] = [torch.empty(0)] * len(TEXTS)
    for rows in whole.cut(max_tokens=60, is_packed=policy.is_packed):
        micro = whole.pack(rows, device=policy.device)
        set_advantages([micro], [each.numpy() for each in SLOPES])
        with torch.set_grad_enabled(backward):
            logprobs, _ = policy.logprobs(micro, temperature=1.0)
            if backward:
                (logprobs * micro.advantages).sum().backward()
        for row, (member, span) in enumerate(
            zip(micro.members, micro.completions, strict=True)
        ):
            values[member] = logprobs[row, span].detach().float().cpu()
    return values, taken_gradients(policy.model) if backward else {}


def value_gap(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    gaps = [(a - b).abs().max().item() for a, b in zip(found, expected, strict=True)]
    return max(float("inf") if gap != gap else gap for gap in gaps)


def gradient_gap(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> float:
    """The largest relative difference of a weight's gradient.

    A gradient below a hundredth of all is measured by that: some are zero but for
    rounding, such as that of a bias of keys.
    """
    total = sum(each.double().square().sum() for each in expected.values()) ** 0.5
    worst = 0.0
    for name in expected.keys() | found.keys():
        wanted = expected.get(name, torch.zeros(1))
        gap = (found.get(name, torch.zeros(1)) - wanted).norm()
        gap = (gap / max(wanted.norm(), 0.01 * total)).item()
        worst = max(worst, float("inf") if gap != gap else gap)
    return worst


class UnequalSizes(Exception):
    """Heads that the kernel does not take."""


def varlen_of_equal_sizes(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *rest: Any,
    **options: Any,
) -> torch.Tensor:
    if not queries.shape[-1] == keys.shape[-1] == values.shape[-1]:
        raise UnequalSizes
    return varlen_reference(queries, keys, values, *rest, **options)


# --- measuring


def measure(name: str, folder: Path) -> Outcome:
    outcome, began = Outcome(name=name), time.process_time()
    architecture = ARCHITECTURES[name]
    write_architecture(architecture, folder)
    plain = plain_of(architecture, folder)
    expected = plain.values(), plain.gradients()
    for step in (_measure_run, _measure_recomputed, _measure_bfloat16):
        try:
            step(outcome, architecture, folder, plain, expected)
        except Failure as error:
            outcome.failures.append(f"{step.__name__}: {error}")
    outcome.failures += [
        f"{what}: off by {gap:.2g}"
        for what, gap in outcome.gaps.items()
        if not (gap <= MAX_GAP or "bfloat16" in what)
    ]
    unread = f"The model {folder} cannot be loaded: "
    outcome.reason = outcome.reason.removeprefix(unread)
    outcome.seconds = time.process_time() - began
    return outcome


def _measure_run(
    outcome: Outcome,
    architecture: Architecture,
    folder: Path,
    plain: Plain,
    expected: Expected,
) -> None:
    run, outcome.reason = explained(start, folder)
    policy, reason = (run.policy, "") if run else explained(load, folder)
    if policy is None:
        outcome.reason = reason
        return
    outcome.form = policy.form
    _compare(outcome, "", update(policy), expected)
    if run is not None:
        _measure_sampling(outcome, run, plain)
    if policy.form != "padded":
        _measure_as_on_gpu(outcome, policy, expected)


def _compare(outcome: Outcome, name: str, found: Expected, expected: Expected) -> None:
    outcome.gaps[f"{name}logprobs"] = value_gap(found[0], expected[0])
    outcome.gaps[f"{name}gradients"] = gradient_gap(found[1], expected[1])


def _measure_sampling(outcome: Outcome, run: Run, plain: Plain) -> None:
    for temperature, seeds in ((1.0, (5, 6, 7)), (0.0, (5,))):
        requests = [Request(token_ids=ids, seeds=seeds) for ids in PROMPTS]
        params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=temperature)
        groups, outcome.reason = explained(run.engine.sample, requests, params)
        if groups is None:
            outcome.sampling = "" if "vllm_server" in outcome.reason else "none"
            return
        gap = _sampling_gap(plain, requests, groups, is_greedy=temperature == 0)
        outcome.gaps["sampling" if temperature else "greedy"] = gap
    assert isinstance(run.engine, TransformersEngine)
    run.engine.prefixes = PrefixStore()
    for _ in range(2):  # the second round continues kept prefixes
        groups = run.engine.sample(requests, params)
        gap = _sampling_gap(plain, requests, groups, is_greedy=True)
        requests = [
            Request(
                token_ids=request.token_ids + completion.token_ids + (3, 4), seeds=(6,)
            )
            for request, (completion,) in zip(requests, groups, strict=True)
        ]
    outcome.gaps["next turn"] = gap
    is_plain = run.engine._ways[0] == "plain"
    outcome.sampling = "transformers" if is_plain else "own"


def _sampling_gap(
    plain: Plain,
    requests: Sequence[Request],
    groups: Sequence[Sequence[Rollout]],
    *,
    is_greedy: bool,
) -> float:
    gap = 0.0
    for request, group in zip(requests, groups, strict=True):
        for completion in group:
            with torch.no_grad():
                logprobs, most = plain.logprobs(request.token_ids, completion.token_ids)
            sampled = torch.tensor(completion.logprobs)
            gap = max(gap, value_gap([sampled], [logprobs]))
            if is_greedy:
                gap = max(gap, (most - logprobs).max().item())
    return gap


def _measure_as_on_gpu(outcome: Outcome, policy: Policy, expected: Expected) -> None:
    kernels.use_attention(policy.model)
    use_fused_kernels(policy.model)
    policy.form = "packed"
    with mock.patch.object(attention, "varlen_attention", varlen_of_equal_sizes):
        for policy.is_varlen in (False, True):
            name = "varlen " if policy.is_varlen else "blocks "
            try:
                found = update(policy)
            except UnequalSizes:
                continue
            _compare(outcome, name, found, expected)


def _measure_recomputed(
    outcome: Outcome,
    architecture: Architecture,
    folder: Path,
    plain: Plain,
    expected: Expected,
) -> None:
    if not outcome.form:
        return
    policy, reason = explained(partial(load, folder, gradient_checkpointing=True))
    if policy is None:
        outcome.notes.append(reason)
        return
    _compare(outcome, "recomputed ", update(policy), expected)


def _measure_bfloat16(
    outcome: Outcome,
    architecture: Architecture,
    folder: Path,
    plain: Plain,
    expected: Expected,
) -> None:
    policy, reason = explained(partial(load, folder, dtype="bfloat16"))
    if policy is None:
        outcome.notes += [reason] if outcome.form else []
        return
    if not outcome.form:
        outcome.failures.append("refused in float32, accepted in bfloat16")
        return
    if policy.form != outcome.form:
        outcome.failures.append(f"{outcome.form}, in bfloat16 {policy.form}")
    own, _ = update(policy, backward=False)
    rounded = plain_of(architecture, folder, torch.bfloat16)
    use_weights_of(plain, rounded)
    exact = plain.values()
    gap, rounding = (mean_gap(values, exact) for values in (own, rounded.values()))
    outcome.gaps |= {"bfloat16": gap, "bfloat16 rounding": rounding}
    if not is_rounding(gap, rounding):
        outcome.failures.append(f"bfloat16: off by {gap:.2g}, rounding {rounding:.2g}")


@torch.no_grad()
def use_weights_of(plain: Plain, rounded: Plain) -> None:
    pairs = zip(plain.model.parameters(), rounded.model.parameters(), strict=True)
    for weight, low in pairs:
        weight.copy_(low)


def mean_gap(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    return (torch.cat([*found]) - torch.cat([*expected])).abs().mean().item()


def is_rounding(gap: float, rounding: float) -> bool:
    """Whether bfloat16 is no further off than transformers' is by itself."""
    # a mixture may route a token to another expert
    return gap <= MAX_ROUNDINGS * rounding + 0.02


# --- the help page

# What a row of its table says of updates and of sampling.
UPDATES = {
    "flat": "Cohort's pass; packed on a GPU",
    "packed": "packed",
    "padded": "padded",
}
SAMPLING = {
    "own": "Cohort's decoder",
    "transformers": "transformers",
    "": "vLLM server",
    "none": "none",
}
_BLOCK = re.compile(r"(<!-- architectures -->\n).*?(<!-- end -->)", re.DOTALL)
_VARIANT = re.compile(r" \([^)]*\)$")


def write_page(outcomes: Sequence[Outcome]) -> None:
    """Fill the tables: models by what they get, then what is refused."""
    rows: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.form:
            rows.setdefault(outcome.kind, []).append(outcome.name)
    lines = ["| Updates | Sampling | Models |", "| --- | --- | --- |"]
    for form, sampling in product(UPDATES, SAMPLING):
        names = rows.get((form, sampling), [])
        # a variant is named where it gets something else than its model
        shown = [name for name in names if _VARIANT.sub("", name) not in names]
        shown += [name for name in names if name == _VARIANT.sub("", name)]
        shown = [name for name in names if name in shown]
        if shown:
            lines.append(
                f"| {UPDATES[form]} | {SAMPLING[sampling]} | {', '.join(shown)} |"
            )
    lines += ["", "| Model | Refused because |", "| --- | --- |"]
    for outcome in outcomes:
        reasons = outcome.notes if outcome.form else [outcome.reason]
        lines += [f"| {outcome.name} | {reason} |" for reason in reasons]
    text = PAGE.read_text(encoding="utf-8")
    table = "\n".join([*lines, ""])
    PAGE.write_text(_BLOCK.sub(rf"\g<1>{table}\g<2>", text), encoding="utf-8")


def kinds_on_page() -> dict[str, tuple[str, str]]:
    """What the page promises of each model that it names."""
    found = {}
    forms = {text: form for form, text in UPDATES.items()}
    ways = {text: way for way, text in SAMPLING.items()}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] in forms:
            for name in cells[2].split(", "):
                found[name] = forms[cells[0]], ways[cells[1]]
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; none: all")
    parser.add_argument("--write", action="store_true", help="write the help page")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    outcomes = []
    for name in options.names or ARCHITECTURES:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(measure(name, Path(folder)))
        sys.stdout.write(f"{outcomes[-1]}\n")
        sys.stdout.flush()
    if options.write:
        write_page(outcomes)
    return any(outcome.failures for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
