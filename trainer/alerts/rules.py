"""The built-in alert rules: a condition, an explanation and remedies each."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.alerts.conditions import REWARD, Condition, Kind
from trainer.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    code: str
    name: str
    why: str
    metric: str
    condition: Condition
    unit: str = ""  # of the threshold, as a form shows it


_MISMATCH = (
    "The log-probs of the rollout engine and the trainer differ, so the ratios are "
    "wrong. Run python -m trainer drift on this configuration, use float32, or set "
    "loss.importance_correction."
)
NOT_FINITE = "not_finite"
RULES = (
    AlertRule(
        code=NOT_FINITE,
        name="Loss is not finite",
        why="One step with a non-finite loss can damage the weights. Lower the "
        "learning rate, or use bfloat16 instead of float16.",
        metric="loss",
        condition=Condition(kind=Kind.MISSING),
    ),
    AlertRule(
        code="kl",
        name="KL is high",
        why="The policy has moved far from its reference and may be exploiting the "
        "reward. Read the step's groups; lower the learning rate or raise "
        "loss.kl_coef.",
        metric="kl/mean",
        condition=Condition(kind=Kind.ABOVE, threshold=1.0, for_steps=10),
        unit="nats per token",
    ),
    AlertRule(
        code="kl_max",
        name="KL of a token is very high",
        why="The policy has moved far from the reference at some tokens, even if the "
        "mean KL is low. Lower optim.learning_rate or raise loss.kl_coef.",
        metric="kl/max",
        condition=Condition(kind=Kind.ABOVE, threshold=20.0, for_steps=3),
        unit="nats",
    ),
    AlertRule(
        code="kl_tail",
        name="99th percentile of KL jumps",
        why="The 99th percentile of the token KL has jumped, even if the mean is low. "
        "Lower the learning rate, set loss.kl_clamp, or raise loss.kl_coef.",
        metric="kl/p99",
        condition=Condition(
            kind=Kind.TIMES_USUAL, threshold=10.0, also_above=1.0, for_steps=3
        ),
        unit="times its running median",
    ),
    AlertRule(
        code="entropy",
        name="Entropy collapses",
        why="Completions become similar and groups get equal rewards. Raise "
        "loss.entropy_coef or loss.clip_high, lower the learning rate, or stop "
        "the run.",
        metric="entropy",
        condition=Condition(kind=Kind.SHARE_OF_FIRST, threshold=0.1, for_steps=5),
        unit="of its first value",
    ),
    AlertRule(
        code="no_signal",
        name="Groups without signal",
        why="Nearly all groups have equal rewards, so the run learns almost nothing. "
        "Choose prompts that are neither too easy nor too hard, raise "
        "rollout.group_size, or set rollout.dynamic_sampling to refill.",
        metric="group/frac_zero_std",
        condition=Condition(kind=Kind.ABOVE, threshold=0.9, for_steps=20),
        unit="of groups",
    ),
    AlertRule(
        code="constant_reward",
        name="Reward does not change",
        why="The mean reward is the same at every step: a rule may score nothing, or "
        "give every completion the same score. Test the reward on some of the "
        "run's completions.",
        metric=REWARD,
        condition=Condition(kind=Kind.CONSTANT, for_steps=20),
    ),
    AlertRule(
        code="unscorable",
        name="Groups without a score",
        why="No rule can score most groups. Test the reward on some rows.",
        metric="group/frac_unscorable",
        condition=Condition(kind=Kind.ABOVE, threshold=0.5, for_steps=5),
        unit="of groups",
    ),
    AlertRule(
        code="truncated",
        name="Completions are truncated",
        why="Many completions end at max_new_tokens and are scored unfinished. Raise "
        "it, penalise length with reward.overlong_buffer_tokens, or set "
        "loss.mask_truncated.",
        metric="completion/frac_truncated",
        condition=Condition(kind=Kind.ABOVE, threshold=0.5, for_steps=10),
        unit="of completions",
    ),
    AlertRule(
        code="grad_norm",
        name="Gradient spikes",
        why="The gradient norm is many times its usual value. Read this step's "
        "groups; lower the learning rate or optim.max_grad_norm.",
        metric="grad_norm",
        condition=Condition(kind=Kind.TIMES_USUAL, threshold=10.0),
        unit="times its running median",
    ),
    AlertRule(
        code="clipped",
        name="Many tokens are clipped",
        why="Clipping removes the gradient of many tokens: the policy moves too far "
        "on one batch. Lower the learning rate, optim.updates_per_batch or "
        "optim.minibatches.",
        metric="clip/frac",
        condition=Condition(kind=Kind.ABOVE, threshold=0.3, for_steps=5),
        unit="of tokens",
    ),
    AlertRule(
        code="mismatch",
        name="Training-inference mismatch",
        why=_MISMATCH,
        metric="mismatch/mean",
        condition=Condition(
            kind=Kind.TIMES_FIRST, threshold=3.0, also_above=0.05, for_steps=5
        ),
        unit="times its first value",
    ),
    AlertRule(
        code="mismatch_high",
        name="Training-inference mismatch is high",
        why=_MISMATCH,
        metric="mismatch/mean",
        condition=Condition(kind=Kind.ABOVE, threshold=0.1),
        unit="nats per token",
    ),
    AlertRule(
        code="mismatch_float32",
        name="Training-inference mismatch in float32",
        why="float32 explains no such difference between the log-probs of the rollout "
        "engine and the trainer. Run python -m trainer drift on this configuration, "
        "or use another rollout engine.",
        metric="mismatch/mean",
        condition=Condition(kind=Kind.ABOVE, threshold=0.01),
        unit="nats per token",
    ),
    AlertRule(
        code="stale",
        name="Completions are off-policy",
        why="The policy is far from the weights that sampled its batch one step "
        "earlier, so the importance weights are large. Lower the learning rate, "
        "or turn rollout.one_step_off off.",
        metric="staleness/kl",
        condition=Condition(kind=Kind.ABOVE, threshold=0.1, for_steps=5),
        unit="nats per token",
    ),
    AlertRule(
        code="importance_masked",
        name="Many tokens are masked",
        why="The importance correction masks many tokens; with a sequence mask these "
        "are mostly long completions. Raise loss.importance_cap, or correct per "
        "token.",
        metric="importance/frac_masked",
        condition=Condition(kind=Kind.ABOVE, threshold=0.2, for_steps=5),
        unit="of tokens",
    ),
    AlertRule(
        code="slow",
        name="Throughput falls",
        why="Tokens per second are far below their running median: another program "
        "may use the machine, or completions became very short.",
        metric="tokens_per_second",
        condition=Condition(kind=Kind.SHARE_OF_USUAL, threshold=0.5, for_steps=20),
        unit="of its running median",
    ),
    AlertRule(
        code="environment_wait",
        name="Environment is slow",
        why="The model waits for replies during most of the sampling. Make the "
        "environment faster, or raise rollout.prompts_per_step: other episodes are "
        "sampled meanwhile.",
        metric="time/environment_share",
        condition=Condition(kind=Kind.ABOVE, threshold=0.5, for_steps=5),
        unit="of sampling time",
    ),
    AlertRule(
        code="episodes_fail",
        name="Episodes fail",
        why="The environment fails or takes too long, and these episodes get no "
        "score. Read the errors of some in the step's groups, or raise "
        "environment.call_seconds.",
        metric="episode/frac_failed",
        condition=Condition(kind=Kind.ABOVE, threshold=0.05, for_steps=3),
        unit="of episodes",
    ),
    AlertRule(
        code="episodes_rewritten",
        name="Taskset rewrites conversations",
        why="The taskset compacts or branches conversations, or has several agents, so "
        "the tokens are not those that the policy read and these episodes get no "
        "score. Turn that off in environment.options, or choose another taskset.",
        metric="episode/frac_rewritten",
        # By default the run pauses at 0.2 (reward.max_error_share).
        condition=Condition(kind=Kind.ABOVE, threshold=0.1),
        unit="of episodes",
    ),
    AlertRule(
        code="tool_errors",
        name="Tool calls fail more often",
        why="More calls are malformed or fail than in the first steps. Read the "
        "calls in the step's groups: the policy may call tools for nothing, or a "
        "tool is down.",
        metric="episode/frac_tool_errors",
        condition=Condition(
            kind=Kind.TIMES_FIRST, threshold=2.0, also_above=0.1, for_steps=5
        ),
        unit="times its first value",
    ),
    AlertRule(
        code="overfits",
        name="Evaluation falls while reward rises",
        why="Held-out scores fall while the training reward rises: the run "
        "overfits its prompts or exploits a rule. Compare completions of both, or "
        "stop at the best checkpoint.",
        metric="eval/*/mean",
        condition=Condition(kind=Kind.OVERFITS, threshold=0.05, for_steps=2),
        unit="below its best",
    ),
)
BY_CODE = {rule.code: rule for rule in RULES}


def meaningless_rules(config: RunConfig) -> frozenset[str]:
    """Codes of rules that say nothing about a run.

    Some runs compare no completions, some begin far from a teacher; and of the limits
    of the mismatch, one applies. Where "auto" may be either number format, that is the
    limit of bfloat16.
    """
    is_float32 = config.model.dtype == "float32" or (
        config.model.dtype == "auto" and config.model.device == "cpu"
    )
    advantage = config.advantage
    compares = advantage.credit not in ("indicator", "ones") and advantage.weight > 0
    idle = {"mismatch_high" if is_float32 else "mismatch_float32"}
    if config.distils:
        idle |= {"kl", "kl_max", "kl_tail"}
    return frozenset(idle if compares else idle | {"no_signal"})
