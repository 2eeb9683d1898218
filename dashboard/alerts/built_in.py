"""The rules that every team begins with: each a sentence on why, and a calm default."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.alerts.conditions import Kind


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    key: str
    name: str
    why: str
    kind: Kind
    metric: str = ""
    threshold: float = 0.0
    for_steps: int = 1
    unit: str = ""  # of the threshold, as the form shows it
    covers: tuple[str, ...] = ()  # the trainer's warnings of the same thing


BUILT_IN = (
    BuiltIn(
        key="not_finite",
        name="Loss is not a number",
        why="One step with a loss that is not finite can spoil the weights. Lower the "
        "learning rate, or use bfloat16 in place of float16.",
        kind=Kind.MISSING,
        metric="loss",
    ),
    BuiltIn(
        key="kl",
        name="KL is high",
        why="The policy has left its reference: it may be gaming the reward. Read the "
        "step's groups; lower the learning rate or raise loss.kl_coef.",
        kind=Kind.ABOVE,
        metric="kl/mean",
        threshold=1.0,
        for_steps=10,
        unit="nats per token",
    ),
    BuiltIn(
        key="entropy",
        name="Entropy collapses",
        why="Completions become alike and groups stop teaching. Raise "
        "loss.entropy_coef or loss.clip_high, lower the learning rate, or stop here.",
        kind=Kind.SHARE_OF_FIRST,
        metric="entropy",
        threshold=0.1,
        for_steps=5,
        unit="of its first value",
        covers=("entropy",),
    ),
    BuiltIn(
        key="no_signal",
        name="Groups without signal",
        why="Nearly all groups have equal rewards: almost nothing is learned. Choose "
        "prompts that are neither too easy nor too hard, raise rollout.group_size, or "
        "set rollout.dynamic_sampling to refill.",
        kind=Kind.ABOVE,
        metric="group/frac_zero_std",
        threshold=0.9,
        for_steps=20,
        unit="of groups",
        covers=("dead_groups",),
    ),
    BuiltIn(
        key="constant_reward",
        name="Reward does not move",
        why="The mean reward is the same step after step: a rule may score nothing, or "
        "everything alike. Try the recipe on some of the run's completions.",
        kind=Kind.CONSTANT,
        metric="reward/mean",
        for_steps=20,
    ),
    BuiltIn(
        key="truncated",
        name="Completions are cut",
        why="Many completions end at max_new_tokens and are scored unfinished. Raise "
        "it, penalise length with reward.overlong_buffer_tokens, or set "
        "loss.mask_truncated.",
        kind=Kind.ABOVE,
        metric="completion/frac_truncated",
        threshold=0.5,
        for_steps=10,
        unit="of completions",
        covers=("truncated",),
    ),
    BuiltIn(
        key="grad_norm",
        name="Gradient spikes",
        why="The gradient is many times its usual size. Look at this step's groups; "
        "lower the learning rate or optim.max_grad_norm.",
        kind=Kind.TIMES_USUAL,
        metric="grad_norm",
        threshold=10.0,
        unit="times its running median",
        covers=("grad_norm",),
    ),
    BuiltIn(
        key="slow",
        name="Throughput falls",
        why="Tokens per second are far below their running median: another program may "
        "use the machine, or completions became very short.",
        kind=Kind.SHARE_OF_USUAL,
        metric="tokens_per_second",
        threshold=0.5,
        for_steps=20,
        unit="of its running median",
    ),
    BuiltIn(
        key="overfits",
        name="Evaluation falls while reward rises",
        why="Held-out prompts get worse as the training reward gets better: the run "
        "learns its prompts or games a rule. Compare completions of both, or stop at "
        "the best checkpoint.",
        kind=Kind.OVERFITS,
        metric="eval/*/mean",
        threshold=0.05,
        for_steps=2,
        unit="below its best",
    ),
    BuiltIn(
        key="trainer",
        name="Trainer warnings",
        why="The trainer watches some values of its own, such as the largest KL of a "
        "token or the share of clipped tokens, and says what to do.",
        kind=Kind.WARNED,
    ),
)
BY_KEY = {one.key: one for one in BUILT_IN}
COVERED = frozenset(code for one in BUILT_IN for code in one.covers)
